//! The Laplace problem and its relaxation: the arithmetic of the workloads `laplace` and
//! `steering`.
//!
//! The problem is that of Burkardt's LAPLACE_MPI: a rectangle whose top side is held at 100 and
//! whose other three sides are held at 0, solved by red-black over-relaxation. Units share the
//! rectangle by bands of rows ([`Solver`]) or by blocks ([`Block`]).
//!
//! Nothing here uses the fabric: it sends no messages, reads no clock and prints nothing.
//!
//! # Objects
//!
//! | file | holds |
//! |---|---|
//! | [`problem`] | [`Problem`]: the rectangle and its boundary; [`Part`]: the band of one unit; [`Omega`] |
//! | [`rows`] | [`Rows`], [`RowsMut`]: a field, by copies of rows; [`VecRows`]: one in private memory |
//! | [`sor`] | [`Solver`]: one step of one unit; [`Halo`]: what it needs of its neighbours |
//! | [`block`] | [`Block`]: half a step of one unit, in place, with ghost cells around its cells |
//! | [`sequential`] | [`Sequential`]: the classic in-place solver with which jobs are compared, bit by bit |
//! | [`series`] | [`Series`]: the analytic solution; [`Samples`]: how far a field is from it |
//! | [`residual`] | [`Residual`]: how far a field is from solving the discrete equations |
//! | [`moments`] | [`Moments`]: count, mean and central moments, mergeable |
//! | [`orders`] | [`Orders`]: the same for any order |
//! | [`progress`] | [`Progress`]: steps and their speed |
//! | `kernel` | one row of one [`Colour`], in the widest vectors of this processor |
//!
//! # Rules
//!
//! * A row of a field is copied in and copied out: a pass relaxes private rows, which stay in the
//!   cache.
//! * A step reads one buffer and writes the other, so readers of step *k* are not disturbed while
//!   step *k + 1* is computed. The numbers are those of the in-place solver, bit by bit.
//! * A field has the owned interior cells only. Boundary columns and halo rows are private to a
//!   unit.
//!
//! # Example
//!
//! ```
//! use samite_relaxation::{NoNeighbours, Problem, Rows, Solver, VecRows};
//!
//! let problem = Problem::new(8, 8)?;
//! let mut solver = Solver::new(problem, problem.part(0, 1)?);
//! let (mut old, mut new) = (VecRows::new(8, 8), VecRows::new(8, 8));
//! solver.fill_initial(&old);
//! for _ in 0..200 {
//!     let Ok(change) = solver.step(&old, &new, &mut NoNeighbours);
//!     std::mem::swap(&mut old, &mut new);
//!     if change.max < 1e-6 {
//!         break;
//!     }
//! }
//! let mut hot = [0.0; 8];
//! old.load(0, &mut hot);
//! assert!(hot[4] > 40.0);
//! # Ok::<(), samite_relaxation::Error>(())
//! ```

#![forbid(unsafe_code)]

pub mod block;
mod error;
mod kernel;
pub mod moments;
pub mod orders;
pub mod problem;
pub mod progress;
pub mod residual;
pub mod rows;
pub mod sequential;
pub mod series;
pub mod sor;

pub use block::Block;
pub use error::Error;
pub use kernel::Colour;
pub use moments::Moments;
pub use orders::Orders;
pub use problem::{Omega, Part, Problem};
pub use progress::Progress;
pub use residual::{Residual, ResidualRows, larger};
pub use rows::{Rows, RowsMut, VecRows};
pub use sequential::{Comparison, Sequential};
pub use series::{Distance, Samples, Series};
pub use sor::{Change, Halo, NoNeighbours, Solver};
