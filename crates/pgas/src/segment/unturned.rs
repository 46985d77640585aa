//! A change of phase that has failed.

use crate::Error;

/// A change of phase that has failed at all members, with the object that was to change. `?` turns
/// it into its [`Error`] and drops the object.
///
/// ```
/// # use samite_fabric::{Config, Fabric, Identity};
/// # let fabric = Fabric::alone(Identity::by_hand("example"), Config::default())?;
/// # let pgas = samite_pgas::Pgas::new(&fabric)?;
/// # let world = pgas.world();
/// use samite_pgas::Local;
/// let cells = world.allocate::<f64>(100)?;
/// match cells.turn::<Local>() {
///     Ok(mut cells) => cells.as_mut_slice().fill(1.0),
///     Err(unturned) => {
///         let (cells, error) = unturned.into_parts();
///         println!("{error}");
///         if let Some(cells) = cells {
///             // ... they are as they were: read them, or try again
///         }
///     }
/// }
/// # Ok::<(), samite_pgas::Error>(())
/// ```
#[derive(Debug)]
pub struct Unturned<S>(Box<(Option<S>, Error)>);

impl<S> Unturned<S> {
    pub(super) fn new(unturned: Option<S>, error: Error) -> Self {
        Unturned(Box::new((unturned, error)))
    }

    /// Returns the cause.
    pub fn error(&self) -> &Error {
        &self.0.1
    }

    /// Returns the object in its old phase, with its elements, and the cause. `None` if other
    /// members continued before one was lost and use this unit's part in the new phase; the part is
    /// then left to them.
    ///
    /// After the loss of a member, operations on its part end with an error that names it, as all
    /// collectives do.
    pub fn into_parts(self) -> (Option<S>, Error) {
        *self.0
    }

    /// Wraps the object in another one.
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
