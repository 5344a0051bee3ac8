//! Finds out whether an item is test code, from its attributes.
//!
//! Invariant: an unknown attribute is not an error.

use proc_macro2::Ident;

/// Returns true if one of the attributes is `cfg(test)`.
pub(super) fn is_test(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attr| {
        attr.path().is_ident("cfg") && attr.parse_args::<Ident>().is_ok_and(|ident| ident == "test")
    })
}
