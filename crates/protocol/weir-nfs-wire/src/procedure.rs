//! Macros for the tables of procedures, and the effect of a procedure.
//!
//! Each program declares its procedures with them, for example `nfs3/procedures.rs`.
//!
//! Invariant: every procedure has an effect, so that a read-only share refuses each change.

/// Effect of a procedure on the files of a share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Effect {
    /// The procedure changes nothing: read-only shares allow it, and the server may run it twice.
    Reads,
    /// The procedure may change files: read-only shares refuse it. If a client repeats such a
    /// call, the duplicate request cache must answer.
    Changes,
}

/// Declares an enumeration of procedures: value, number, name in statistics, effect.
macro_rules! procedures {
    (
        $(#[$meta:meta])*
        pub enum $name:ident {
            $(
                $(#[$value_meta:meta])*
                $value:ident = $number:literal, $text:literal, $effect:ident;
            )*
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u32)]
        pub enum $name {
            $($(#[$value_meta])* $value = $number,)*
        }

        impl $name {
            /// All procedures, ordered by number.
            pub const ALL: &[Self] = &[$(Self::$value),*];

            /// Returns the procedure with this number. `None`: the server replies PROC_UNAVAIL.
            pub const fn from_number(number: u32) -> Option<Self> {
                match number {
                    $($number => Some(Self::$value),)*
                    _ => None,
                }
            }

            /// Number in the call header.
            pub const fn number(self) -> u32 {
                self as u32
            }

            /// Name in statistics, in lower case.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$value => $text,)*
                }
            }

            /// Effect on the files of a share.
            pub const fn effect(self) -> $crate::Effect {
                match self {
                    $(Self::$value => $crate::Effect::$effect,)*
                }
            }
        }
    };
}

/// Declares an enumeration with the arguments or the results of each procedure of a program. It has
/// a lifetime if one of the messages borrows from the input.
macro_rules! messages {
    (
        $(#[$meta:meta])*
        pub enum $name:ident<$life:lifetime> of $procedure:ident { $($messages:tt)* }
    ) => {
        messages! { @ [$(#[$meta])*] $name [<$life>] [$life] $procedure $($messages)* }
    };
    (
        $(#[$meta:meta])*
        pub enum $name:ident of $procedure:ident { $($messages:tt)* }
    ) => {
        messages! { @ [$(#[$meta])*] $name [] ['_] $procedure $($messages)* }
    };
    (
        @ [$(#[$meta:meta])*] $name:ident [$($generics:tt)*] [$life:lifetime] $procedure:ident
        $($value:ident($type:ty),)*
    ) => {
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub enum $name $($generics)* {
            $(
                #[doc = concat!("[`", stringify!($procedure), "::", stringify!($value), "`]")]
                $value($type),
            )*
        }

        impl $($generics)* $name $($generics)* {
            /// Procedure that the message belongs to.
            pub const fn procedure(&self) -> $procedure {
                match self {
                    $(Self::$value(..) => $procedure::$value,)*
                }
            }

            /// Decodes the message of a procedure. The caller decides whether bytes may follow
            /// ([`Decoder::finish`](weir_oncrpc::Decoder::finish)).
            ///
            /// # Errors
            /// The bytes are no message of the procedure. A server replies GARBAGE_ARGS.
            pub fn decode(
                procedure: $procedure,
                input: &mut weir_oncrpc::Decoder<$life>,
            ) -> Result<Self, weir_oncrpc::XdrError> {
                Ok(match procedure {
                    $($procedure::$value => Self::$value(weir_oncrpc::Xdr::decode(input)?),)*
                })
            }

            /// Appends the message, without its RPC header.
            pub fn encode(&self, out: &mut weir_oncrpc::Encoder<'_>) {
                match self {
                    $(Self::$value(message) => weir_oncrpc::Xdr::encode(message, out),)*
                }
            }
        }
    };
}

pub(crate) use {messages, procedures};
