//! Distributed data: arrays of any dimension, ghost cells, collective algorithms, a hash map.
//!
//! # Core objects
//! * [`Pattern`]: which rank owns which element. Pure arithmetic, made of a [`Dist`] per dimension
//!   and a [`Grid`] of ranks.
//! * [`Array`]: `T` elements distributed over a team by a pattern, in one symmetric segment. Any
//!   member can put and get elements and boxes ([`Bounds`]), one-sided; the algorithms are
//!   collective.
//! * [`Map`]: a hash table over a team, also one-sided.
//!
//! # Files
//! `dist` (one dimension), `grid`, `bounds`, `layout` (memory of a rank), `pattern/` (all pure) ·
//! `phase` · `access` (elements and boxes of others) · `view` (own elements, all elements) ·
//! `algorithm`, `sort` (collective) · `halo` (ghost cells) · `map/` · `error`
//!
//! # Rules
//! * A box is half-open. In the buffers of a call, its elements are in row-major order. Indices are
//!   `u64`.
//! * A box is moved in stretches that are consecutive in their owner's memory, to or from all
//!   owners at once.
//! * A collective algorithm on a shared array sees what any member did before that member called
//!   it, and its effects are seen by what any member does after the call has returned there. In
//!   between, the algorithm alone uses the elements.
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
pub use map::Map;
pub use pattern::{Halo, Location, Pattern, Run};
pub use phase::{Own, OwnMut, Reach};
pub use view::Elements;

use crate::{Elem, Error, Phase, Result, Segment, Shared, Team};
use halo::Exchange;
use layout::Layout;
use std::hash::{DefaultHasher, Hash, Hasher};

/// An array of `D` dimensions whose elements are distributed over a team. `P` is the phase of its
/// memory, as for a [`Segment`].
#[derive(Debug)]
pub struct Array<T, const D: usize, P: Phase = Shared> {
    segment: Segment<T, P>,
    pattern: Pattern<D>,
    exchange: Option<Exchange<T, D>>,
}

impl<T: Elem, const D: usize> Array<T, D> {
    /// Creates an array of zeros. Collective; all members pass the same pattern.
    ///
    /// # Errors
    /// The grid does not have as many ranks as the team, the patterns differ, or the budget is used
    /// up.
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
    /// Returns the pattern, which says which rank owns which element.
    pub fn pattern(&self) -> &Pattern<D> {
        &self.pattern
    }

    /// Returns the team of the array.
    pub fn team(&self) -> &Team {
        self.segment.team()
    }

    /// Returns the number of elements of the whole array.
    pub fn len(&self) -> u64 {
        self.pattern.len()
    }

    /// Returns true if the array has no elements.
    pub fn is_empty(&self) -> bool {
        self.pattern.is_empty()
    }

    /// Frees the array. Collective: when it returns, no member uses the array any more.
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

/// Checks that all members pass the same value to a collective call. Collective.
fn agree(team: &Team, what: &'static str, value: &impl Hash) -> Result<()> {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    let ours = hasher.finish();
    let mut all = vec![0; team.size() as usize];
    team.all_gather(&[ours], &mut all)?;
    match all.iter().position(|theirs| *theirs != ours) {
        None => Ok(()),
        Some(rank) => Err(Error::Mismatch {
            unit: team.0.job.named(team.unit(rank as u32)?),
            what,
            theirs: all[rank],
            ours,
        }),
    }
}
