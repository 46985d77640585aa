//! A change of phase that has failed.

use crate::Error;

/// A change of phase that has failed, at all members, with what was to change. By `?` it becomes
/// its [`Error`], and what was to change is dropped.
#[derive(Debug)]
pub struct Unturned<S>(Box<(Option<S>, Error)>);

impl<S> Unturned<S> {
    pub(super) fn new(unturned: Option<S>, error: Error) -> Self {
        Unturned(Box::new((unturned, error)))
    }

    /// Why.
    pub fn error(&self) -> &Error {
        &self.0.1
    }

    /// What was to change, in its old phase and with its elements, and why it did not. `None` where
    /// other members have gone on before one was lost, and use this unit's part in the new phase:
    /// then it is left to them.
    ///
    /// After the loss of a member, operations on its part end with an error that names it, as all
    /// collectives do.
    pub fn into_parts(self) -> (Option<S>, Error) {
        *self.0
    }

    /// With something else around it.
    pub(crate) fn map<R>(self, around: impl FnOnce(S) -> R) -> Unturned<R> {
        let (unturned, error) = *self.0;
        Unturned::new(unturned.map(around), error)
    }
}

impl<S> From<Unturned<S>> for Error {
    fn from(unturned: Unturned<S>) -> Error {
        unturned.0.1
    }
}
