//! Test attributes of items.
//!
//! Invariant: an unknown attribute is no error.

use proc_macro2::Ident;

/// True for attributes with `cfg(test)`.
pub(super) fn is_test(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attr| {
        attr.path().is_ident("cfg") && attr.parse_args::<Ident>().is_ok_and(|ident| ident == "test")
    })
}
