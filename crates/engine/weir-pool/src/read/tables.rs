//! Loads remap and reference tables of segments back into RAM.
//!
//! Not here: the choice of the tables that stay in RAM (`segments::tables`).
//!
//! Invariant: a table is checked before it is used.

use std::sync::Arc;

use weir_base::{ErrorKind, VsegId};
use weir_format::{BlockPtr, FormatError, ReferenceTable, RemapTable};

use crate::error::PoolError;
use crate::segments::entries::Inner;
use crate::segments::segment_table::Segments;
use crate::segments::tables::{HoldsTables, Table, TableKind, Unread};
use crate::state::live_of::LiveOf;
use crate::state::pool::Pool;

impl Pool {
    /// Runs a query on the segment table, and loads the tables of segments that the query needs.
    ///
    /// # Errors
    /// A table cannot be read.
    pub(crate) async fn translated<'a, T>(
        &'a self,
        mut ask: impl FnMut(&'a Segments) -> Result<T, Unread>,
    ) -> Result<T, PoolError> {
        loop {
            match ask(&self.segments) {
                Ok(answer) => return Ok(answer),
                Err(unread) => self.bring(unread).await?,
            }
        }
    }

    async fn bring(&self, unread: Unread) -> Result<(), PoolError> {
        match unread.kind {
            TableKind::Remap => self.bring_table::<RemapTable>(unread).await,
            TableKind::References => self.bring_table::<ReferenceTable>(unread).await,
        }
    }

    async fn bring_table<T: Table>(&self, unread: Unread) -> Result<(), PoolError>
    where
        Inner: HoldsTables<T>,
    {
        let Unread { vseg, ptr, .. } = unread;
        let Some(ptr) = ptr else {
            return Err(PoolError::TableLost {
                pool: self.label.name.clone(),
                what: T::WHAT,
                vseg,
            });
        };
        match self.read_table::<T>(vseg, &ptr).await {
            Ok(table) => {
                self.segments.inner.lock().tables_of::<T>().loaded(unread, Arc::new(table));
            }
            Err(error) if self.segments.inner.lock().tables_of::<T>().is_stored_at(unread) => {
                if error.kind() == ErrorKind::Data {
                    let is_new = self.segments.inner.lock().tables_of::<T>().note_unreadable(vseg);
                    if is_new {
                        self.note_lost(&LiveOf::Part(T::PART, vseg.0));
                    }
                }
                return Err(error);
            }
            // A commit stored the table at another address during the read: the caller repeats its
            // query.
            Err(_) => {}
        }
        Ok(())
    }

    /// Reads and decodes a stored table.
    pub(crate) async fn read_table<T: Table>(
        &self,
        vseg: VsegId,
        ptr: &BlockPtr,
    ) -> Result<T, PoolError> {
        let len = ptr.stored_bytes();
        let bad = |source| self.bad_block(ptr, T::WHAT, source);
        // Root segments are never cleaned, so locating the table needs no other table.
        let Some(place) = self.segments.pin_root(ptr) else { return Err(self.no_segment(ptr)) };
        let (buf, start) = self.read_placed(&place, ptr, None).await?;
        let bytes = buf.get(start..start + len);
        let bytes = bytes.ok_or_else(|| bad(FormatError::Truncated { what: T::WHAT }))?;
        T::decode(bytes, vseg).map_err(bad)
    }
}
