//! Reports units that have ended to the agent: a unit that had not joined never will, so no process
//! has to wait for it.

use samite::agent::unit_ended;
use samite_launch::{Exit, Name, Plan};
use std::sync::mpsc::{Sender, channel};
use std::thread::Builder;
use std::time::Duration;

/// The agent answers at once, and no other thread waits for this one.
const ANSWER: Duration = Duration::from_secs(5);

/// Reports the ends of units from a separate thread, so that the launcher never waits.
pub(crate) struct Ends {
    send: Sender<(u32, String, String)>,
    /// The name and the first unit of each program.
    programs: Vec<(String, u32)>,
    left: usize,
}

impl Ends {
    pub(crate) fn of(plan: &Plan) -> Ends {
        let mut first = 0;
        let programs = plan.programs.iter().map(|program| {
            let unit = first;
            first += program.units;
            (program.name.clone(), unit)
        });
        let programs = programs.collect();
        let (send, ends) = channel::<(u32, String, String)>();
        let (domain, job) = (plan.domain.clone(), plan.id.clone());
        let tell = move || {
            for (unit, name, how) in ends {
                if let Err(error) = unit_ended(&domain, &job, unit, (&name, &how), ANSWER) {
                    tracing::debug!(%error, name, "the agent was not told of an end");
                }
            }
        };
        if let Err(error) = Builder::new().name("ends".to_owned()).spawn(tell) {
            tracing::warn!(%error, "no thread: if a unit ends early, others wait until their deadline");
        }
        Ends {
            send,
            programs,
            left: plan.units(),
        }
    }

    pub(crate) fn tell(&mut self, name: &Name, exit: Exit) {
        let program = self.programs.iter();
        let first = program
            .filter(|(program, _)| program == name.program())
            .map(|(_, first)| *first)
            .next();
        let (Some(rank), Some(first)) = (name.rank(), first) else {
            return;
        };
        self.left = self.left.saturating_sub(1);
        // After the last unit, no process is left that waits.
        if self.left > 0 {
            let _ = self
                .send
                .send((first + rank, name.to_string(), exit.to_string()));
        }
    }
}
