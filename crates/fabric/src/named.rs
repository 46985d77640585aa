//! Peers in errors, by the names that people know.

use crate::PeerId;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::Deref;
use std::sync::Arc;

/// What an error names: the number of a peer or unit, or the party of a wait, with the name of the
/// unit (`heat.1`: rank 1 of the program `heat`) if this process knew it. Prints the name if there
/// is one, otherwise the number. Two of them are equal if the numbers are.
#[derive(Clone)]
pub struct Named<T> {
    /// The number, or the party.
    pub id: T,
    name: Option<Arc<str>>,
}

impl<T> Named<T> {
    /// Creates one with the name, if it is known.
    pub fn new(id: T, name: Option<Arc<str>>) -> Named<T> {
        Named { id, name }
    }

    /// Returns the name, if it is known.
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// Gives it a name, unless it has one.
    pub(crate) fn call(&mut self, name: impl FnOnce() -> Option<Arc<str>>) {
        if self.name.is_none() {
            self.name = name();
        }
    }
}

impl<T> From<T> for Named<T> {
    fn from(id: T) -> Named<T> {
        Named { id, name: None }
    }
}

impl<T> Deref for Named<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.id
    }
}

impl<T: PartialEq> PartialEq for Named<T> {
    fn eq(&self, other: &Named<T>) -> bool {
        self.id == other.id
    }
}

impl<T: Eq> Eq for Named<T> {}

impl<T: Hash> Hash for Named<T> {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        self.id.hash(hasher);
    }
}

impl<T: PartialEq> PartialEq<T> for Named<T> {
    fn eq(&self, other: &T) -> bool {
        self.id == *other
    }
}

impl PartialEq<Named<PeerId>> for PeerId {
    fn eq(&self, other: &Named<PeerId>) -> bool {
        *self == other.id
    }
}

/// As the number and the name.
impl<T: Serialize> Serialize for Named<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        (&self.id, self.name()).serialize(serializer)
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Named<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Named<T>, D::Error> {
        let (id, name) = <(T, Option<String>)>::deserialize(from)?;
        let name = name.map(Arc::from);
        Ok(Named { id, name })
    }
}

impl<T: fmt::Display> fmt::Display for Named<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.name {
            Some(name) => f.write_str(name),
            None => self.id.fmt(f),
        }
    }
}

impl<T: fmt::Debug> fmt::Debug for Named<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.name {
            Some(name) => write!(f, "{name} ({:?})", self.id),
            None => self.id.fmt(f),
        }
    }
}
