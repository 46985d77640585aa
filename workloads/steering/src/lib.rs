//! A cycle of programs: a solver whose relaxation factor is chosen by another program while it
//! runs, and a third one that checks both; with the method `graph`, by the edges of a workflow.
//!
//! ```text
//!               field --[ mean 4 ]--[ block ]--> coarse
//!   [solver]                                              [monitor]
//!               orders <-----[ one token ]------ orders
//!      |
//!      +------- field --[ latest ]--> field               [check]
//! ```
//!
//! A *round* consists of some sweeps of the solver, a look of the monitor, and its command for the
//! next round: the factor, and whether to stop. The first round has a token instead of a command,
//! and begins with the factor of LAPLACE_MPI. Each unit of the monitor sees a block of the field's
//! means, and they agree on the largest change of a mean (`Steering` decides what follows from it).
//!
//! # Promises
//! * The monitor sees every round, the check some of them and always the last.
//! * The check repeats the run in one process, with the same rule, and compares factors and cells
//!   bit by bit, whatever the number of units of the others.
//!
//! # Files
//! This one (the rule: `Steering`) · [`solver`] (on a distributed array, in place) · [`monitor`] ·
//! [`check`]

#![forbid(unsafe_code)]

pub mod check;
mod error;
pub mod monitor;
pub mod solver;

pub use error::Error;

use clap::Args;
use samite_relaxation::problem::OMEGA;

/// Name of the field's stream in the solver and the check.
const STREAM: &str = "field";
/// The variable of both streams of the field.
const FIELD: &str = "u";
/// Name of the field's stream in the monitor.
const COARSE: &str = "coarse";
/// The monitor's stream: a factor, and 1 to stop.
const ORDERS: &str = "orders";
/// Attribute of a step of the field: the factors of all rounds so far.
const FACTORS: &str = "factors";

/// The largest factor that is chosen.
const MOST: f64 = 1.99;

/// The parameters of the steering rule.
#[derive(Clone, Debug, Args)]
pub struct Rule {
    /// Sweeps from one look of the monitor to the next
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    pub sweeps: u32,
    /// Stop when no mean of the field changes by more than this in a round
    #[arg(long, default_value_t = 1e-4)]
    pub tolerance: f64,
    /// Stop after this many rounds at the latest
    #[arg(long, default_value_t = 1000)]
    pub rounds: u64,
}

/// Chooses the relaxation factor from the rate of convergence.
///
/// Young's relation between the rate `r` of convergence per sweep with the factor `w`, and the
/// spectral radius `m` of Jacobi's method, `(r + w - 1)^2 = r w^2 m^2`, gives `m` from the observed
/// rate, and the best factor `2 / (1 + sqrt(1 - m^2))` from `m` (Hageman and Young, *Applied
/// Iterative Methods*, 1981, chapter 9). The factor only grows; after it has changed, the next
/// round is only observed.
#[derive(Debug)]
pub(crate) struct Steering {
    rule: Rule,
    factor: f64,
    round: u64,
    before: Option<f64>,
}

/// What the solver has to do in the next round.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Command {
    pub(crate) factor: f64,
    pub(crate) stop: bool,
}

impl Command {
    /// Returns the command before the monitor has seen anything.
    pub(crate) fn first() -> Command {
        Command {
            factor: OMEGA,
            stop: false,
        }
    }
}

impl Steering {
    pub(crate) fn new(rule: &Rule) -> Steering {
        Steering {
            rule: rule.clone(),
            factor: Command::first().factor,
            round: 0,
            before: None,
        }
    }

    /// Returns the command that follows from the largest change of a mean in the last round.
    pub(crate) fn decide(&mut self, change: f64) -> Command {
        self.round += 1;
        let better = self.before.and_then(|before| self.better(change / before));
        self.before = match better {
            Some(better) => {
                self.factor = better;
                None
            }
            None => Some(change),
        };
        Command {
            factor: self.factor,
            stop: change <= self.rule.tolerance || self.round >= self.rule.rounds,
        }
    }

    /// Returns a larger factor, if the ratio of the changes of two rounds suggests one.
    fn better(&self, ratio: f64) -> Option<f64> {
        if !(ratio > 0.0 && ratio < 1.0) {
            return None;
        }
        let rate = ratio.powf(1.0 / f64::from(self.rule.sweeps));
        let jacobi = (rate + self.factor - 1.0).powi(2) / (rate * self.factor.powi(2));
        let best = 2.0 / (1.0 + (1.0 - jacobi.min(1.0)).sqrt());
        Some(best.min(MOST)).filter(|best| *best > self.factor + 1e-3)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule() -> Rule {
        Rule {
            sweeps: 10,
            tolerance: 1e-3,
            rounds: 5,
        }
    }

    #[test]
    fn slow_convergence_raises_the_factor_and_rest_ends_the_run() {
        let mut steering = Steering::new(&rule());
        assert_eq!(steering.decide(1.0), Command::first());
        let faster = steering.decide(0.9);
        assert!(faster.factor > OMEGA && faster.factor < 2.0, "{faster:?}");
        // The round after a new factor is only observed.
        assert_eq!(steering.decide(0.85), faster);
        assert!(steering.decide(1e-3).stop);
    }

    #[test]
    fn a_run_has_an_end_whatever_is_seen() {
        let mut steering = Steering::new(&rule());
        let commands: Vec<Command> = [1.0, 2.0, f64::NAN, 0.0, 4.0]
            .map(|change| steering.decide(change))
            .into();
        let stops: Vec<bool> = commands.iter().map(|command| command.stop).collect();
        assert_eq!(stops, [false, false, false, true, true]);
        assert!(
            commands
                .iter()
                .all(|command| command.factor > 0.0 && command.factor < 2.0)
        );
    }

    /// Young's relation in both directions: a run that converges as in theory gets the best factor
    /// of theory.
    #[test]
    fn the_factor_is_that_of_theory() {
        let jacobi = (std::f64::consts::PI / 65.0).cos();
        let best = 2.0 / (1.0 + (1.0 - jacobi * jacobi).sqrt());
        let half = OMEGA * jacobi / 2.0;
        let rate = (half + (half * half - OMEGA + 1.0).sqrt()).powi(2);
        let mut steering = Steering::new(&rule());
        steering.decide(1.0);
        let found = steering.decide(rate.powi(10)).factor;
        assert!((found - best).abs() < 1e-6, "{found} and not {best}");
    }
}
