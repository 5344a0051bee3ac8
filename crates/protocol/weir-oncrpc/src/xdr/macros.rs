//! Macros that declare XDR structures and enumerations.
//!
//! Unions are written out as Rust enumerations where they occur.
//!
//! Invariant: a structure is encoded field by field in the order of its declaration.

/// Declares structures with public fields that implement [`Xdr`](crate::Xdr). A structure may have
/// one lifetime, which is the lifetime of the input.
///
/// ```
/// weir_oncrpc::xdr_struct! {
///     /// Device numbers (RFC 1813 section 2.5, specdata3).
///     #[derive(Copy)]
///     pub struct Specdata3 {
///         /// Major number.
///         pub major: u32,
///         /// Minor number.
///         pub minor: u32,
///     }
/// }
/// ```
#[macro_export]
macro_rules! xdr_struct {
    ($(
        $(#[$meta:meta])*
        $vis:vis struct $name:ident $(<$life:lifetime>)? {
            $($(#[$field_meta:meta])* pub $field:ident: $type:ty,)*
        }
    )*) => {$(
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        $vis struct $name $(<$life>)? {
            $($(#[$field_meta])* pub $field: $type,)*
        }

        $crate::xdr_struct! { @fields $name [$($life)?] $($field)* }
    )*};
    (@fields $name:ident [] $($field:ident)*) => {
        impl<'input> $crate::Xdr<'input> for $name {
            #[inline]
            fn decode(input: &mut $crate::Decoder<'input>) -> Result<Self, $crate::XdrError> {
                Ok(Self { $($field: $crate::Xdr::decode(input)?),* })
            }

            #[inline]
            fn encode(&self, out: &mut $crate::Encoder<'_>) {
                $($crate::Xdr::encode(&self.$field, out);)*
            }
        }
    };
    (@fields $name:ident [$life:lifetime] $($field:ident)*) => {
        impl<$life> $crate::Xdr<$life> for $name<$life> {
            #[inline]
            fn decode(input: &mut $crate::Decoder<$life>) -> Result<Self, $crate::XdrError> {
                Ok(Self { $($field: $crate::Xdr::decode(input)?),* })
            }

            #[inline]
            fn encode(&self, out: &mut $crate::Encoder<'_>) {
                $($crate::Xdr::encode(&self.$field, out);)*
            }
        }
    };
}

/// Declares enumerations that implement [`Xdr`](crate::Xdr). Decoding rejects other numbers.
///
/// ```
/// weir_oncrpc::xdr_enum! {
///     /// Stability of a write (RFC 1813 section 3.3.7, stable_how).
///     pub enum StableHow {
///         /// The server may keep the data in memory.
///         Unstable = 0,
///         /// The data is durable.
///         DataSync = 1,
///     }
/// }
/// assert_eq!(StableHow::from_u32(1), Some(StableHow::DataSync));
/// ```
#[macro_export]
macro_rules! xdr_enum {
    ($(
        $(#[$meta:meta])*
        $vis:vis enum $name:ident {
            $($(#[$value_meta:meta])* $value:ident = $number:literal,)*
        }
    )*) => {$(
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u32)]
        $vis enum $name {
            $($(#[$value_meta])* $value = $number,)*
        }

        impl $name {
            /// All values, in the order of their declaration.
            $vis const ALL: &[Self] = &[$(Self::$value),*];

            /// Returns the value with this number.
            #[inline]
            $vis const fn from_u32(number: u32) -> Option<Self> {
                match number {
                    $($number => Some(Self::$value),)*
                    _ => None,
                }
            }
        }

        impl $crate::Xdr<'_> for $name {
            #[inline]
            fn decode(input: &mut $crate::Decoder<'_>) -> Result<Self, $crate::XdrError> {
                let value = input.u32()?;
                let unknown = $crate::XdrError::UnknownValue { name: stringify!($name), value };
                Self::from_u32(value).ok_or(unknown)
            }

            #[inline]
            fn encode(&self, out: &mut $crate::Encoder<'_>) {
                out.u32(*self as u32);
            }
        }
    )*};
}
