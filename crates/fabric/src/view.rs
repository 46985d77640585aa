//! A message in place, on the receiver's side.

use crate::fabric::Fabric;
use crate::ops::Status;
use samite_mem::SharedBytes;

/// A message in place; see [`Fabric::recv_view`].
#[derive(Debug)]
pub struct View {
    status: Status,
    /// The bytes, with a lease if they lie in the sender's segment.
    bytes: SharedBytes,
    /// Dropped last: the sender is told that the view has ended after its memory was released.
    end: ViewEnd,
}

#[derive(Debug)]
struct ViewEnd {
    fabric: Fabric,
    /// The id of the view, if the bytes are the sender's.
    view: Option<u64>,
}

impl View {
    /// `view`: the id of the view, if the bytes are the sender's.
    pub(crate) fn new(
        fabric: Fabric,
        status: Status,
        bytes: SharedBytes,
        view: Option<u64>,
    ) -> Self {
        let end = ViewEnd { fabric, view };
        View { status, bytes, end }
    }

    /// Returns sender, tag and length.
    pub fn status(&self) -> Status {
        self.status
    }

    /// Returns the bytes in place.
    pub fn bytes(&self) -> &SharedBytes {
        &self.bytes
    }

    /// Returns whether nothing was copied.
    pub fn in_place(&self) -> bool {
        self.end.view.is_some()
    }

    /// Returns whether the sender has given the message up (its deadline was over) while it was
    /// viewed: then the bytes may differ from those that it sent. Their memory stays valid as long
    /// as the view exists. `false` means that everything read before is correct. Always false for a
    /// private copy. Always true in a fork, where the bytes are zeroes.
    pub fn is_withdrawn(&self) -> bool {
        let Some(view) = self.end.view else {
            return false;
        };
        let engine = self.end.fabric.0.core();
        let engine = engine.as_ref().map(|core| &core.engine);
        engine.is_none_or(|engine| engine.is_of_parent() || engine.views.is_withdrawn(view))
    }
}

impl Drop for ViewEnd {
    fn drop(&mut self) {
        let Some(view) = self.view.take() else {
            return;
        };
        self.fabric.0.with(|core| {
            core.engine.end_view(view, true);
            core.flush();
        });
    }
}
