//! The other units of a team, accessed over global memory.

use samite::pgas::{Sum, Team};

use super::problem::Problem;
use super::solver::Others;
use crate::Error;

/// The members of a team, each with its part of the rows.
#[derive(Debug)]
pub struct Members {
    team: Team,
    /// Rows by rank.
    rows: Vec<u64>,
}

impl Members {
    /// Returns the members of a team that divide the rows of a problem.
    pub fn new(team: &Team, problem: &Problem) -> Members {
        let rows = |rank| problem.part(rank, team.size()).len() as u64;
        Members {
            team: team.clone(),
            rows: (0..team.size()).map(rows).collect(),
        }
    }
}

impl Others for Members {
    type Error = Error;

    fn sum<const N: usize>(&mut self, values: [f64; N]) -> Result<[f64; N], Error> {
        let mut sums = [0.0; N];
        self.team.all_reduce(&values, &mut sums, Sum)?;
        Ok(sums)
    }

    fn whole(&mut self, part: &[f64], whole: &mut [f64]) -> Result<(), Error> {
        Ok(self.team.all_gather_v(part, whole, &self.rows)?)
    }
}
