//! Tells the agent of units that have ended: one that had not joined will not, and nobody has to
//! wait for it.

use samite::agent::unit_ended;
use samite_launch::{Exit, Name, Plan};
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

/// The agent answers at once; nobody waits for this thread anyway.
const ANSWER: Duration = Duration::from_secs(5);

/// Where the ends of units are told, by a thread of its own: the launcher waits for nobody.
pub(crate) struct Ends {
    send: Sender<(u32, String, String)>,
    /// The first unit of each program, and how many it has.
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
        std::thread::spawn(move || {
            for (unit, name, how) in ends {
                if let Err(error) = unit_ended(&domain, &job, unit, (&name, &how), ANSWER) {
                    tracing::debug!(%error, name, "the agent was not told of an end");
                }
            }
        });
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
        // Nobody is left to hear of the last one.
        if self.left > 0 {
            let _ = self
                .send
                .send((first + rank, name.to_string(), exit.to_string()));
        }
    }
}
