//! Runs single kernel operations on an open disk, and repeats them until all bytes are transferred.
//!
//! `file` handles ranges, alignment, statistics and error context.
//!
//! Invariants:
//! - an operation owns its buffer and a reference to the file. If its future is dropped early, the
//!   runtime keeps both until the kernel has completed the operation;
//! - operations are submitted to the runtime of the calling thread; this thread must have one;
//! - the loop continues only after a short transfer or an interruption, never after a failure.

use std::io;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::os::fd::AsFd;
use std::sync::Arc;

use compio::BufResult;
use compio::buf::{IntoInner, IoBuf as RuntimeBuf, IoBufMut as RuntimeBufMut, SetLen};
use compio::driver::op::{Asyncify, ReadAt, Sync as SyncFile, WriteAt};
use compio::runtime::submit;

use weir_block::IoBuf;

/// Part of a buffer that the kernel has not filled yet.
struct Unread {
    buf: IoBuf,
    done: usize,
}

impl RuntimeBuf for Unread {
    fn as_init(&self) -> &[u8] {
        &self.buf[self.done..]
    }
}

#[expect(unsafe_code, reason = "the runtime's trait has an unsafe method")]
impl SetLen for Unread {
    /// Does nothing: all bytes of an `IoBuf` are initialised and its length never changes.
    unsafe fn set_len(&mut self, _len: usize) {}
}

impl RuntimeBufMut for Unread {
    #[expect(unsafe_code, reason = "the runtime wants a view that may be uninitialised")]
    fn as_uninit(&mut self) -> &mut [MaybeUninit<u8>] {
        let rest: *mut [u8] = &raw mut self.buf[self.done..];
        // SAFETY: u8 and MaybeUninit<u8> have the same layout, and the borrow of self keeps the
        // access exclusive. The runtime lets only the kernel write here, so no byte becomes
        // uninitialised.
        unsafe { &mut *(rest as *mut [MaybeUninit<u8>]) }
    }
}

/// Part of a shared buffer that is not written yet.
struct Unwritten {
    data: Arc<IoBuf>,
    range: Range<usize>,
}

impl RuntimeBuf for Unwritten {
    fn as_init(&self) -> &[u8] {
        &self.data[self.range.clone()]
    }
}

/// Fills `buf` from `offset` on; returns an error if the file ends earlier.
pub(crate) async fn read_full<F: AsFd + 'static>(
    file: &Arc<F>,
    offset: u64,
    buf: IoBuf,
) -> (io::Result<()>, IoBuf) {
    let mut unread = Unread { buf, done: 0 };
    while unread.done < unread.buf.len() {
        let at = offset + unread.done as u64;
        let BufResult(result, op) = submit(ReadAt::new(Arc::clone(file), at, unread)).await;
        unread = op.into_inner();
        match result {
            Ok(0) => return (Err(io::ErrorKind::UnexpectedEof.into()), unread.buf),
            Ok(count) => unread.done += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return (Err(error), unread.buf),
        }
    }
    (Ok(()), unread.buf)
}

/// Writes all of `data[range]` at `offset`.
pub(crate) async fn write_full<F: AsFd + 'static>(
    file: &Arc<F>,
    mut offset: u64,
    data: Arc<IoBuf>,
    range: Range<usize>,
) -> io::Result<()> {
    let mut rest = Unwritten { data, range };
    while !rest.range.is_empty() {
        let BufResult(result, op) = submit(WriteAt::new(Arc::clone(file), offset, rest)).await;
        rest = op.into_inner();
        match result {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => {
                rest.range.start += count;
                offset += count as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Runs `fdatasync`: makes the file's data durable, and the metadata needed to find the data.
pub(crate) async fn sync_data<F: AsFd + 'static>(file: &Arc<F>) -> io::Result<()> {
    loop {
        match submit(SyncFile::new(Arc::clone(file), true)).await.0 {
            Ok(_) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Runs a blocking system call on the runtime's thread pool.
pub(crate) async fn blocking(
    call: impl FnOnce() -> io::Result<()> + Send + 'static,
) -> io::Result<()> {
    let op = Asyncify::new(move || BufResult(call().map(|()| 0), ()));
    submit(op).await.0.map(|_| ())
}
