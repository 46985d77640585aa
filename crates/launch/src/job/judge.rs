//! What the end of a unit means for its job.

use super::{Ending, Job, guard_of, is_unit};
use crate::cause::{Claim, Failure, weigh};
use crate::error::{Error, Exit};
use crate::output::Event;
use crate::plan::Name;
use std::time::{Duration, Instant};

/// How long after the end of a unit, which was started again or is optional, the others may notice
/// it: twice the default deadline of the fabric.
const NOTICED_WITHIN: Duration = Duration::from_secs(60);

/// What keeps a job going when a unit has failed.
enum Remedy {
    /// The unit is started again.
    StartAgain,
    /// The unit is optional.
    GoOn,
}

/// Returns the pause before the next start of a unit that has been restarted `restarts` times: one
/// that fails at once must not keep the machine busy with starts.
fn pause_before(restarts: u32) -> Duration {
    const MAX: Duration = Duration::from_secs(1);
    Duration::from_millis(10)
        .saturating_mul(1 << restarts.min(16))
        .min(MAX)
}

impl Job<'_> {
    /// Reports the ends of processes. Notes which units that failed are started again, and drops
    /// the failures of optional programs. Returns the other ends.
    pub(super) fn pardon(
        &mut self,
        ended: Vec<(usize, Exit)>,
        on_event: &mut dyn FnMut(Event<'_>),
    ) -> Vec<(usize, Exit)> {
        // If another failure ends the job, nothing is started again, and each failure, also that of
        // an optional unit, may be the cause of the others.
        let goes_on = self.ending.is_none() && !ended.iter().any(|&end| self.ends_the_job(end));
        let mut left = Vec::new();
        for (index, exit) in ended {
            let remedy = self.remedy(index, exit).filter(|_| goes_on);
            if !matches!(remedy, Some(Remedy::StartAgain)) {
                self.tell_hosts(index, exit);
            }
            if remedy.is_some() {
                let failure = self.failure_of(index, exit, &self.units.plan.names());
                let name = self.processes[index].name.clone();
                self.pardoned.insert(name, (Instant::now(), failure));
            }
            let unit = &self.processes[index];
            match remedy {
                Some(Remedy::StartAgain) => {
                    let at = Instant::now() + pause_before(unit.restarts);
                    self.processes[index].again = Some((exit, at));
                }
                Some(Remedy::GoOn) => {
                    on_event(unit.ended(exit, false));
                    on_event(Event::Missed {
                        name: &unit.name,
                        exit,
                        said: unit.output.last_words().shown(),
                    });
                }
                None => {
                    on_event(unit.ended(exit, false));
                    left.push((index, exit));
                }
            }
        }
        left
    }

    /// Returns what keeps the job going after a process ended, if it is a unit that failed.
    fn remedy(&self, index: usize, exit: Exit) -> Option<Remedy> {
        let process = &self.processes[index];
        if exit.is_success() || !is_unit(process) {
            return None;
        }
        if self.units.is_restarted(process, exit) {
            return Some(Remedy::StartAgain);
        }
        self.units.is_optional(process).then_some(Remedy::GoOn)
    }

    /// Returns true if the job cannot go on after this end.
    fn ends_the_job(&self, (index, exit): (usize, Exit)) -> bool {
        let is_failure = !exit.is_success() || !is_unit(&self.processes[index]);
        is_failure && self.remedy(index, exit).is_none()
    }

    /// Starts the units for another time whose pause is over.
    pub(super) fn restart_units(&mut self, on_event: &mut dyn FnMut(Event<'_>)) {
        for index in 0..self.processes.len() {
            let is_due = |(_, at): &mut (Exit, Instant)| *at <= Instant::now();
            let again = &mut self.processes[index].again;
            if self.ending.is_none()
                && let Some((exit, _)) = again.take_if(is_due)
            {
                self.start_again(index, exit, on_event);
            }
        }
    }

    /// Once the job ends, no unit is started again.
    pub(super) fn forgo_restarts(&mut self, on_event: &mut dyn FnMut(Event<'_>)) {
        if self.ending.is_none() {
            return;
        }
        for process in &mut self.processes {
            if let Some((exit, _)) = process.again.take() {
                on_event(process.ended(exit, false));
            }
        }
    }

    /// Starts a unit for another time. If that fails, the job ends, unless the unit is optional.
    fn start_again(&mut self, index: usize, exit: Exit, on_event: &mut dyn FnMut(Event<'_>)) {
        let old = &self.processes[index];
        let (Some((program, _)), Some(rank)) = (self.units.program_of(old), old.name.rank()) else {
            return;
        };
        let started = {
            let mut on_start = guard_of(&mut self.guard);
            self.units.start(program, rank, &mut on_start)
        };
        on_event(old.ended(exit, started.is_ok()));
        let mut unit = match started {
            Ok(unit) => unit,
            Err(error) if self.units.is_optional(old) => {
                let cause = std::error::Error::source(&error);
                let cause = cause.map_or(String::new(), |cause| format!(": {cause}"));
                return on_event(Event::Missed {
                    name: &old.name,
                    exit,
                    said: vec![format!("{error}{cause}")],
                });
            }
            Err(error) => return self.fail(Failure::other(Claim::Own, error)),
        };
        unit.started().into_iter().for_each(&mut *on_event);
        unit.restarts = old.restarts + 1;
        if let Some(pid) = unit.child() {
            self.numbers.insert(pid, index);
        }
        self.processes[index] = unit;
    }

    /// Determines what the ends of processes mean for the job. If several ended, the probable cause
    /// comes first.
    pub(super) fn judge(&mut self, ended: &[(usize, Exit)]) {
        if ended.is_empty() {
            return;
        }
        let units_left = self.units_left();
        let units = self.units.plan.names();
        let mut failures = Vec::new();
        for &(index, exit) in ended {
            let process = &self.processes[index];
            match is_unit(process) {
                true if exit.is_success() => {
                    if self.failure.is_none() {
                        self.ended_well.push(process.name.clone());
                    }
                }
                true => failures.push(self.failure_of(index, exit, &units)),
                false if process.was_killed() || (exit.is_success() && !units_left) => {}
                false => {
                    let said = process.output.last_words().shown();
                    failures.push(Failure::other(
                        Claim::Agent,
                        Error::AgentLost { exit, said },
                    ));
                }
            }
        }
        failures.sort_by_key(|failure| failure.claim);
        failures.into_iter().for_each(|failure| self.fail(failure));
    }

    /// Returns the failure of a unit that ended so. `units`: the names of all units of the job.
    fn failure_of(&self, index: usize, exit: Exit, units: &[Name]) -> Failure {
        let unit = &self.processes[index];
        let words = unit.output.last_words();
        Failure::of_unit((&unit.name, unit.stop), exit, words, units)
    }

    /// Returns the failure of which this one is a consequence, if it names a unit whose failure
    /// was pardoned a short time ago, and otherwise this one.
    fn traced(&mut self, mut failure: Failure) -> Failure {
        self.pardoned
            .retain(|_, (at, _)| at.elapsed() < NOTICED_WITHIN);
        while failure.claim == Claim::Consequence
            && let Some((_, before)) =
                (failure.named.iter()).find_map(|name| self.pardoned.remove(name))
        {
            failure = before;
        }
        failure
    }

    /// Records a failure, and asks the others to end as soon as the cause is known.
    pub(super) fn fail(&mut self, failure: Failure) {
        let failure = self.traced(failure);
        let is_certain = failure.claim.is_certain();
        let was_asked = matches!(self.ending, Some(Ending::Asked | Ending::Killed));
        if let (Error::UnitFailed { unit, .. }, Claim::Disagreement, false) =
            (&failure.error, failure.claim, was_asked)
        {
            let named = failure.named.clone();
            self.disagreements.push((unit.clone(), named));
        }
        if self.is_cause(&failure, was_asked) {
            self.failure = Some(failure);
        }
        match &self.ending {
            None | Some(Ending::Listening { .. }) if is_certain => self.ask_to_end(),
            None => {
                let until = Instant::now().checked_add(self.listen);
                self.ending = Some(Ending::Listening { until });
            }
            Some(_) => {}
        }
    }

    /// Returns true if a failure is rather the cause than the one that was recorded before.
    fn is_cause(&self, failure: &Failure, was_asked: bool) -> bool {
        let Some(before) = &self.failure else {
            return true;
        };
        match (failure.claim, before.claim) {
            (_, Claim::Interrupt) => false,
            // The signal was sent to all, and another process ended before the launcher heard it.
            (Claim::Interrupt, Claim::Signal | Claim::Agent) => before.has_signal_of(failure),
            // A host that does not answer any more when the job is ending is not why it ends.
            (Claim::Agent, before) if was_asked && matches!(failure.error, Error::Host { .. }) => {
                !before.is_certain()
            }
            // Units notice the loss of the agent before the launcher does.
            (Claim::Agent, before) => before > Claim::Signal,
            (claim, before) => {
                !before.is_certain() && claim < before && (failure.is_unasked || !was_asked)
            }
        }
    }

    /// Returns how the job ended, when all processes have.
    pub(super) fn result(self) -> Result<(), Error> {
        let Some(failure) = self.failure else {
            return self.units.files.failure().map_or(Ok(()), Err);
        };
        let mut after = self.ended_well;
        if !failure.named.is_empty() {
            after.retain(|name| failure.named.contains(name));
        }
        Err(match (failure.claim, failure.error) {
            (Claim::Disagreement, error) => weigh(error, &self.disagreements),
            (
                Claim::Consequence,
                Error::UnitFailed {
                    unit, exit, said, ..
                },
            ) => Error::UnitFailed {
                unit,
                exit,
                said,
                after,
            },
            (_, error) => error,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_before_restarts_double_up_to_a_second() {
        let pauses = [0, 1, 6, 7, 1000].map(|restarts| pause_before(restarts).as_millis());
        assert_eq!(pauses, [10, 20, 640, 1000, 1000]);
    }
}
