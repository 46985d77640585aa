//! The reports of the checking mode.

use crate::Unit;
use samite_fabric::Named;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::ops::Range;

/// Two unordered accesses to the same elements, at least one of which writes.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Conflict {
    /// The unit whose memory it is.
    #[serde(with = "number")]
    pub owner: Named<Unit>,
    /// The number of the segment at that unit.
    pub segment: u16,
    /// The elements that both access, counted in elements of the later access.
    pub elements: Range<u64>,
    /// Size of such an element in bytes.
    pub element_bytes: u64,
    /// The access that happened to come first.
    pub earlier: Access,
    /// The access that was found to conflict with it.
    pub later: Access,
}

/// One side of a [`Conflict`].
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Access {
    /// The unit that made the access.
    #[serde(with = "number")]
    pub unit: Named<Unit>,
    /// The kind of access.
    pub kind: AccessKind,
    /// Where in the program: file, line and column.
    pub place: String,
}

/// How memory is accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum AccessKind {
    /// A put that is completed by its call or its handle.
    Put,
    /// A put that is completed by a flush.
    ImplicitPut,
    /// A get.
    Get,
    /// An atomic update.
    Update,
    /// An atomic load.
    Load,
    /// The change of a signal.
    Signal,
    /// The wait for a signal.
    Wait,
}

impl AccessKind {
    pub(super) fn writes(self) -> bool {
        use AccessKind::{ImplicitPut, Put, Signal, Update};
        matches!(self, Put | ImplicitPut | Update | Signal)
    }

    pub(super) fn is_atomic(self) -> bool {
        use AccessKind::{Load, Signal, Update, Wait};
        matches!(self, Update | Load | Signal | Wait)
    }

    /// Returns true if two unordered accesses of these kinds conflict.
    pub(super) fn conflicts_with(self, other: AccessKind) -> bool {
        (self.writes() || other.writes()) && !(self.is_atomic() && other.is_atomic())
    }
}

impl fmt::Display for AccessKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            AccessKind::Put => "a put",
            AccessKind::ImplicitPut => "an implicit put",
            AccessKind::Get => "a get",
            AccessKind::Update => "an atomic update",
            AccessKind::Load => "an atomic load",
            AccessKind::Signal => "a signal",
            AccessKind::Wait => "a wait for a signal",
        })
    }
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} by {} at {}", self.kind, self.unit, self.place)
    }
}

impl fmt::Display for Conflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Range { start, end } = self.elements;
        write!(
            f,
            "elements {start}..{end} ({} bytes each) of segment {} of {}: {}, and {}, without order between them",
            self.element_bytes, self.segment, self.owner, self.earlier, self.later
        )
    }
}

impl Conflict {
    /// Gives the units that it names the names that `name_of` knows.
    pub(super) fn name_units(&mut self, name_of: impl Fn(Unit) -> Named<Unit>) {
        for unit in [
            &mut self.owner,
            &mut self.earlier.unit,
            &mut self.later.unit,
        ] {
            *unit = name_of(unit.id);
        }
    }
}

/// Serializes a unit as its number: whoever prints it names it.
mod number {
    use crate::Unit;
    use samite_fabric::Named;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(
        unit: &Named<Unit>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.serialize_u32(unit.0)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Named<Unit>, D::Error> {
        Ok(Unit(u32::deserialize(from)?).into())
    }
}

#[cfg(test)]
mod tests {
    use super::AccessKind::{Get, ImplicitPut, Load, Put, Signal, Update, Wait};

    #[test]
    fn atomics_do_not_conflict_and_neither_do_reads() {
        for (one, other, conflict) in [
            (Put, Put, true),
            (Put, Get, true),
            (ImplicitPut, Load, true),
            (Update, Get, true),
            (Update, Put, true),
            (Signal, Get, true),
            (Wait, Put, true),
            (Get, Get, false),
            (Get, Load, false),
            (Update, Load, false),
            (Signal, Wait, false),
            (Signal, Update, false),
        ] {
            assert_eq!(one.conflicts_with(other), conflict, "{one} {other}");
            assert_eq!(other.conflicts_with(one), conflict, "{other} {one}");
        }
    }
}
