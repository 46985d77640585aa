//! The exchange of border rows between neighbours, by messages from and to shared memory.
//!
//! ```text
//!   0                row bytes
//!   +----------------+----------------+----------------+----------------+
//!   | to above       | from above     | to below       | from below     |
//!   +----------------+----------------+----------------+----------------+
//! ```

use std::time::{Duration, Instant};

use samite::{Fabric, Match, PeerId, Segment, SharedBytes};

use crate::Error;
use crate::error::Doing;
use samite_relaxation::{Halo, Part, Problem};

/// Tag of a row, twice per step.
const BORDER: u64 = 5;

/// A neighbour and the two rows exchanged with it.
#[derive(Debug)]
struct Side {
    peer: PeerId,
    rank: usize,
    ours: SharedBytes,
    theirs: SharedBytes,
}

/// The neighbours of one unit.
///
/// Rows are written to shared memory and sent from there: a neighbour that maps it copies each
/// once, directly into its own.
#[derive(Debug)]
pub(crate) struct Borders {
    fabric: Fabric,
    above: Option<Side>,
    below: Option<Side>,
    _rows: Segment,
    /// Time spent here.
    pub(crate) spent: Duration,
}

impl Borders {
    /// Waits for the other units of this program. Collective: none returns before all have found
    /// it.
    pub(crate) fn new(fabric: &Fabric, problem: &Problem, part: Part) -> Result<Self, Error> {
        let solvers = fabric
            .program(&fabric.identity().program)
            .and_then(|solvers| fabric.barrier(&solvers).map(|()| solvers))
            .doing(|| "looking for the other units of the solver".into())?;
        let row_bytes = problem.cols() as u64 * 8;
        let rows = fabric
            .allocate(4 * row_bytes)
            .doing(|| "making room for the borders".into())?;
        let row = |which| rows.bytes().slice(which * row_bytes, row_bytes);
        let side = |rank: usize, first: u64| Side {
            peer: solvers[rank],
            rank,
            ours: row(first),
            theirs: row(first + 1),
        };
        Ok(Self {
            fabric: fabric.clone(),
            above: part.above().map(|rank| side(rank, 0)),
            below: part.below().map(|rank| side(rank, 2)),
            _rows: rows,
            spent: Duration::ZERO,
        })
    }
}

impl Halo for Borders {
    type Error = Error;

    fn exchange(
        &mut self,
        top_row: &[f64],
        bottom_row: &[f64],
        halo_top: &mut [f64],
        halo_bottom: &mut [f64],
    ) -> Result<(), Error> {
        let start = Instant::now();
        let sides = || [&self.above, &self.below].into_iter().flatten();
        let program = &self.fabric.identity().program;
        let with = |side: &Side| format!("exchanging borders with {program}.{}", side.rank);
        // Start all receives before the sends, so that both directions overlap.
        let receives = sides()
            .map(|side| {
                let wants = Match::from(side.peer, BORDER);
                self.fabric
                    .irecv_shared(wants, side.theirs.clone())
                    .doing(|| with(side))
            })
            .collect::<Result<Vec<_>, _>>()?;
        for (side, row) in [(&self.above, top_row), (&self.below, bottom_row)] {
            let Some(side) = side else { continue };
            side.ours.write_f64s(0, row);
        }
        let sends = sides()
            .map(|side| {
                self.fabric
                    .isend_shared(side.peer, BORDER, side.ours.clone())
                    .doing(|| with(side))
            })
            .collect::<Result<Vec<_>, _>>()?;
        for (side, receive) in sides().zip(receives) {
            receive.wait().doing(|| with(side))?;
        }
        for (side, send) in sides().zip(sends) {
            send.wait().doing(|| with(side))?;
        }
        for (side, halo) in [(&self.above, halo_top), (&self.below, halo_bottom)] {
            if let Some(side) = side {
                side.theirs.read_f64s(0, halo);
            }
        }
        self.spent += start.elapsed();
        Ok(())
    }
}
