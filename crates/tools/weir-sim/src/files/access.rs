//! Access of tasks to a filesystem that the operator may close.
//!
//! Invariant: while a filesystem is closed, no task uses it.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use weir_fs::Filesystem;

use crate::executor::Executor;

/// Interval between two checks of the tasks that still use a filesystem.
const POLL_INTERVAL: Duration = Duration::from_micros(100);

/// Receives the filesystem before a task can use it, and `None` before it closes.
type Listener = Box<dyn Fn(Option<&Arc<Filesystem>>)>;

/// The filesystem of a dataset while it is open.
#[derive(Default)]
pub(super) struct Access {
    files: RefCell<Option<Arc<Filesystem>>>,
    listener: RefCell<Option<Listener>>,
    /// Number of permits.
    busy: Cell<usize>,
}

/// Use of an open filesystem by one task.
pub(super) struct Permit {
    access: Rc<Access>,
    pub(super) files: Arc<Filesystem>,
}

impl Access {
    /// Calls `listener` at each later open and close.
    pub(super) fn listen(&self, listener: impl Fn(Option<&Arc<Filesystem>>) + 'static) {
        *self.listener.borrow_mut() = Some(Box::new(listener));
    }

    pub(super) fn open(&self, files: Filesystem) {
        let files = Arc::new(files);
        self.notify(Some(&files));
        *self.files.borrow_mut() = Some(files);
    }

    fn notify(&self, files: Option<&Arc<Filesystem>>) {
        if let Some(listener) = &*self.listener.borrow() {
            listener(files);
        }
    }

    /// Returns a permit; `None` while the filesystem is closed.
    pub(super) fn enter(self: &Rc<Self>) -> Option<Permit> {
        let files = self.files.borrow().clone()?;
        self.busy.set(self.busy.get() + 1);
        Some(Permit { access: Rc::clone(self), files })
    }

    /// Closes the filesystem, and waits until no task uses it.
    pub(super) async fn close(&self, executor: &Executor) {
        self.notify(None);
        let files = self.files.take();
        while self.busy.get() > 0 {
            executor.sleep(POLL_INTERVAL).await;
        }
        drop(files);
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.access.busy.set(self.access.busy.get() - 1);
    }
}
