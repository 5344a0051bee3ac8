//! Extended attributes that do not fit into an inode: the content of a separate object.
//!
//! Invariants:
//! - the names are in ascending order, without duplicates, so a list has one encoding;
//! - the encoded list has at most [`XattrList::BYTES_MAX`] bytes.

use crate::bytes::{Field, Reader, Writer, field};
use crate::error::FormatError;
use crate::files::inode::Xattr;
use crate::files::log::XATTR_VALUE_BYTES_MAX;

const WHAT: &str = "extended attributes";
/// Bytes of an attribute before its name.
const HEAD_BYTES: usize = 5;

/// Extended attributes in ascending order of their names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct XattrList(Vec<Xattr>);

impl XattrList {
    /// Maximum encoded size.
    pub const BYTES_MAX: usize = 256 << 10;

    /// Fields, for the format documentation.
    pub const FIELDS: &[Field] = &[field(
        0,
        "attributes",
        "each with the length of its name (u8), the length of its value (u32), name and value, in \
         the order of the names. The size of the object ends the list",
    )];

    /// Decodes a list.
    ///
    /// # Errors
    /// A name or value is invalid, or the names are not in order.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut r = Reader::new(WHAT, bytes);
        if bytes.len() > Self::BYTES_MAX {
            return Err(r.bad("size", bytes.len() as u64));
        }
        let mut list: Vec<Xattr> = Vec::new();
        while r.left() > 0 {
            let (name_bytes, value_bytes) = (r.u8()?, r.u32()?);
            let name = r.take(usize::from(name_bytes))?;
            if name.is_empty() || name.contains(&0) {
                return Err(r.bad("name", name_bytes));
            }
            if value_bytes as usize > XATTR_VALUE_BYTES_MAX {
                return Err(r.bad("value", value_bytes));
            }
            if list.last().is_some_and(|last| *last.name >= *name) {
                return Err(r.bad("order", list.len() as u64));
            }
            let value = r.take(value_bytes as usize)?;
            list.push(Xattr { name: name.into(), value: value.into() });
        }
        Ok(Self(list))
    }

    /// Encodes the list.
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::default();
        for Xattr { name, value } in &self.0 {
            w.u8(u8::try_from(name.len()).expect("the name of an attribute has 255 bytes"));
            w.u32(u32::try_from(value.len()).expect("a value has 64 KiB"));
            w.bytes(name);
            w.bytes(value);
        }
        w.0
    }

    /// Encoded size in bytes.
    pub fn encoded_bytes(&self) -> usize {
        self.0.iter().map(|xattr| HEAD_BYTES + xattr.name.len() + xattr.value.len()).sum()
    }

    /// The attributes.
    pub fn as_slice(&self) -> &[Xattr] {
        &self.0
    }

    /// Value of an attribute.
    pub fn get(&self, name: &[u8]) -> Option<&[u8]> {
        let at = self.0.binary_search_by(|xattr| (*xattr.name).cmp(name)).ok()?;
        self.0.get(at).map(|xattr| &*xattr.value)
    }

    /// Sets an attribute.
    pub fn insert(&mut self, xattr: Xattr) {
        self.remove(&xattr.name);
        let at = self.0.partition_point(|other| other.name < xattr.name);
        self.0.insert(at, xattr);
    }

    /// Removes an attribute. Returns false if there was none.
    pub fn remove(&mut self, name: &[u8]) -> bool {
        let before = self.0.len();
        self.0.retain(|xattr| &*xattr.name != name);
        self.0.len() < before
    }
}
