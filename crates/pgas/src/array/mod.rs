//! Distributed data: arrays of any dimension, ghost cells, collective algorithms, a hash map.
//!
//! # Core objects
//! * [`Pattern`]: which rank has which element; pure arithmetic. Made of a [`Dist`] per dimension
//!   and a [`Grid`] of ranks.
//! * [`Array`]: `T` elements over a team by a pattern, in one symmetric segment. Elements and boxes
//!   ([`Bounds`]) are put and got one-sided by anybody; the algorithms are collective.
//! * [`Map`]: a hash table over a team, one-sided as well.
//!
//! # Files
//! `dist` (one dimension), `grid`, `bounds`, `layout` (memory of a rank), `pattern/` (all pure) ·
//! `phase` · `access` (elements and boxes of others) · `view` (own elements, all elements) ·
//! `algorithm`, `sort` (collective) · `halo` (ghost cells) · `map/` · `error`
//!
//! # Rules
//! * A box is half-open, its elements are in row-major order in the buffers of a call, indices are
//!   `u64`.
//! * A box is moved as the stretches that are consecutive in their owner's memory, to all owners at
//!   once.
//! * A collective algorithm on a shared array sees what any member did before it called it, and
//!   what it did is seen by whatever any member does after it returned there. In between the
//!   elements are its own.
//!
//! ```
//! # use samite_fabric::{Config, Fabric, Identity};
//! # let fabric = Fabric::alone(Identity::by_hand("example"), Config::default())?;
//! use samite_pgas::Pgas;
//! use samite_pgas::array::{Array, Pattern};
//! let pgas = Pgas::new(&fabric)?;
//! let pattern = Pattern::block([8, 6], pgas.units())?;
//! let mut array = Array::<u64, 2>::new(pgas.world(), pattern)?;
//! array.fill_with(|[i, j]| 10 * i + j)?;
//! let mut column = [0; 3];
//! array.get([2..5, 4..5], &mut column)?;
//! assert_eq!(column, [24, 34, 44]);
//! assert_eq!(array.max_element()?, Some((75, [7, 5])));
//! # Ok::<(), samite_pgas::Error>(())
//! ```

mod access;
mod algorithm;
mod bounds;
mod dist;
mod error;
mod grid;
mod halo;
mod layout;
mod map;
mod pattern;
mod phase;
mod sort;
mod view;

pub use bounds::Bounds;
pub use dist::Dist;
pub use error::ArrayError;
pub use grid::Grid;
pub use halo::Halo;
pub use map::Map;
pub use pattern::{Location, Pattern, Run};
pub use phase::{Own, OwnMut, Reach};
pub use view::Elements;

use crate::{Elem, Error, Phase, Result, Segment, Shared, Team};
use halo::Exchange;
use layout::Layout;
use std::hash::{DefaultHasher, Hash, Hasher};

/// An array of `D` dimensions whose elements are distributed over a team. `P` is the phase of its
/// memory, as that of a [`Segment`].
#[derive(Debug)]
pub struct Array<T, const D: usize, P: Phase = Shared> {
    segment: Segment<T, P>,
    pattern: Pattern<D>,
    exchange: Option<Exchange<T, D>>,
}

impl<T: Elem, const D: usize> Array<T, D> {
    /// An array of zeros. Collective, with the same pattern.
    ///
    /// # Errors
    /// A grid that has not as many ranks as the team, patterns that differ, the budget.
    pub fn new(team: &Team, pattern: Pattern<D>) -> Result<Array<T, D>> {
        let (grid, size) = (pattern.grid().ranks(), team.size());
        if grid != size {
            let wrong = ArrayError::OtherTeam { grid, team: size };
            return Err(team.0.refuse_next(wrong.into()));
        }
        let _turn = team.0.long_turn()?;
        agree(team, "the pattern of an array", &pattern)?;
        Ok(Array {
            segment: team.allocate(pattern.capacity())?,
            exchange: Exchange::new(team, &pattern)?,
            pattern,
        })
    }
}

impl<T: Elem, const D: usize, P: Phase> Array<T, D, P> {
    /// Who has which element.
    pub fn pattern(&self) -> &Pattern<D> {
        &self.pattern
    }

    /// Whose array it is.
    pub fn team(&self) -> &Team {
        self.segment.team()
    }

    /// How many elements there are in all.
    pub fn len(&self) -> u64 {
        self.pattern.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.pattern.is_empty()
    }

    /// Frees it. Collective: when it returns nobody uses it any more.
    pub fn free(self) -> Result<()> {
        self.segment.free()?;
        self.exchange.into_iter().for_each(Exchange::release);
        Ok(())
    }

    fn rank(&self) -> u32 {
        self.segment.team().rank()
    }

    fn own_layout(&self) -> Layout<D> {
        let at = self.pattern.grid().coordinates(self.rank());
        self.pattern.layout(at)
    }
}

/// That all members mean the same by a collective call. Collective.
fn agree(team: &Team, what: &'static str, value: &impl Hash) -> Result<()> {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    let ours = hasher.finish();
    let mut all = vec![0; team.size() as usize];
    team.all_gather(&[ours], &mut all)?;
    match all.iter().position(|theirs| *theirs != ours) {
        None => Ok(()),
        Some(rank) => Err(Error::Mismatch {
            unit: team.unit(rank as u32)?,
            what,
            theirs: all[rank],
            ours,
        }),
    }
}
