//! Segments that kernels may use, by number, with what they may do there.

use crate::Trap;
use samite_mem::SharedBytes;
use std::fmt;
use std::sync::Arc;

/// The most segments that a unit grants: a call names its grants by the bits of a `u16`.
pub const GRANTS_MAX: usize = 16;

/// What kernels may do with a segment. Atomics read and write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Rights {
    /// Read only.
    Read,
    /// Read, write, and use atomics.
    Write,
}

impl fmt::Display for Rights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Rights::Read => "read",
            Rights::Write => "write",
        })
    }
}

/// A granted segment.
#[derive(Clone, Debug)]
pub struct Grant {
    /// Its bytes: a use of the segment, which keeps its memory.
    pub bytes: SharedBytes,
    /// What kernels may do with it.
    pub rights: Rights,
}

/// The segments that this unit grants, by number. Cheap to clone; a change makes new ones.
#[derive(Clone, Debug, Default)]
pub struct Grants(Arc<[Option<Grant>; GRANTS_MAX]>);

impl Grants {
    /// Returns grants in which this number is as given; `None` revokes it.
    ///
    /// # Panics
    /// If the number is not below [`GRANTS_MAX`].
    pub fn with(&self, number: usize, grant: Option<Grant>) -> Grants {
        let mut grants = (*self.0).clone();
        grants[number] = grant;
        Grants(Arc::new(grants))
    }

    /// Returns the granted segments with their numbers.
    pub fn iter(&self) -> impl Iterator<Item = (usize, &Grant)> {
        let grants = self.0.iter().enumerate();
        grants.filter_map(|(number, grant)| Some((number, grant.as_ref()?)))
    }

    /// Returns the numbers of the granted segments, as bits.
    pub fn bits(&self) -> u16 {
        self.iter().fold(0, |bits, (number, _)| bits | 1 << number)
    }

    /// Returns whether both are the same value.
    pub fn is(&self, other: &Grants) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Returns a segment, if `allowed` has its bit and its rights suffice.
    #[inline]
    pub(crate) fn get(
        &self,
        allowed: u16,
        number: u32,
        wants: Rights,
    ) -> Result<&SharedBytes, Trap> {
        let grant = self.0.get(number as usize).and_then(Option::as_ref);
        match grant {
            Some(grant) if allowed >> number & 1 == 1 => match grant.rights >= wants {
                true => Ok(&grant.bytes),
                false => Err(Trap::Rights {
                    grant: number,
                    wants,
                    has: grant.rights,
                }),
            },
            _ => Err(Trap::NotGranted(number)),
        }
    }
}
