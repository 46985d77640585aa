//! Which units run and which have yet to start: programs that wait for others, and units that are
//! started again.

use crate::error::{Error, Exit};
use crate::files::OutputFiles;
use crate::hosts::Hosts;
use crate::limits::Pipes;
use crate::output::Event;
use crate::plan::{Plan, Program};
use crate::spawn::{Process, UnitPlace};

/// How units are started.
#[derive(Debug)]
pub(crate) struct Units<'p> {
    pub(crate) plan: &'p Plan,
    pub(crate) pipes: Pipes,
    pub(crate) files: OutputFiles,
    pub(crate) hosts: Hosts,
    /// The programs that have not started, by their number in the plan.
    waiting: Vec<usize>,
    /// How many units have been started.
    started: usize,
}

impl<'p> Units<'p> {
    pub(crate) fn new(plan: &'p Plan, pipes: Pipes, files: OutputFiles) -> Self {
        Self {
            plan,
            pipes,
            files,
            hosts: Hosts::default(),
            waiting: (0..plan.programs.len()).collect(),
            started: 0,
        }
    }

    /// Returns true if a program has yet to start.
    pub(crate) fn are_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Starts the programs whose turn it is, and adds their units to `new`. `processes`: those of
    /// units that were started before.
    ///
    /// # Errors
    /// One of them cannot be started; those before it are in `new`.
    pub(crate) fn start_next(
        &mut self,
        processes: &[Process],
        new: &mut Vec<Process>,
        on_start: &mut dyn FnMut(u32),
        on_event: &mut dyn FnMut(Event<'_>),
    ) -> Result<(), Error> {
        for number in std::mem::take(&mut self.waiting) {
            let program = &self.plan.programs[number];
            let is_ready = |name: &String| self.is_ready(name, processes);
            if !program.after.iter().all(is_ready) {
                self.waiting.push(number);
                continue;
            }
            for rank in 0..program.units {
                let unit = self.start(number, rank, on_start)?;
                unit.started().into_iter().for_each(&mut *on_event);
                new.push(unit);
                self.started += 1;
            }
        }
        Ok(())
    }

    /// Starts a unit, also for another time. The caller sends [`Process::started`].
    pub(crate) fn start(
        &self,
        program: usize,
        rank: u32,
        on_start: &mut dyn FnMut(u32),
    ) -> Result<Process, Error> {
        let place = UnitPlace {
            program,
            rank,
            unit: self.first_unit(program) + rank as usize,
            started: self.started,
        };
        if let Some(host) = self
            .plan
            .host_of(program, rank)
            .filter(|_| self.hosts.are_there())
        {
            let unit = self.hosts.start_unit(host, (program as u32, rank));
            return Ok(Process::start_on_host(self.plan, &place, &self.files, unit));
        }
        let unit = Process::start_unit(self.plan, &place, self.pipes, &self.files)?;
        // The guard learns of the group first: the launcher may be killed while it tells of it.
        unit.child().into_iter().for_each(on_start);
        Ok(unit)
    }

    /// Returns the number in the job of the first unit of a program.
    fn first_unit(&self, program: usize) -> usize {
        let before = &self.plan.programs[..program];
        before.iter().map(|program| program.units as usize).sum()
    }

    /// Returns true if no program has to wait for this one any more: all of its units have said so,
    /// or ended. A program that has not started keeps others waiting.
    fn is_ready(&self, name: &str, processes: &[Process]) -> bool {
        let Some(number) = self.number(name) else {
            // It has no units.
            return true;
        };
        let program = &self.plan.programs[number];
        let own = processes.iter().filter(|unit| unit.name.program() == name);
        let (mut started, mut ready) = (0, 0);
        for unit in own {
            started += 1;
            // What a unit said that is started again is about its last life.
            let is_up = unit.has_ended() || unit.output.is_ready();
            ready += u32::from(is_up && unit.again.is_none());
        }
        started == program.units && ready == started
    }

    fn number(&self, name: &str) -> Option<usize> {
        let mut programs = self.plan.programs.iter();
        programs.position(|program| program.name == name)
    }

    /// Returns the program of a unit, with its number in the plan.
    pub(crate) fn program_of(&self, unit: &Process) -> Option<(usize, &'p Program)> {
        let number = self.number(unit.name.program())?;
        Some((number, &self.plan.programs[number]))
    }

    /// Returns whether a unit that ended in this way is started again.
    pub(crate) fn is_restarted(&self, unit: &Process, exit: Exit) -> bool {
        let program = self.program_of(unit);
        !exit.is_success() && program.is_some_and(|(_, program)| unit.restarts < program.restart)
    }

    /// Returns whether the job goes on without a unit that failed.
    pub(crate) fn is_optional(&self, unit: &Process) -> bool {
        self.program_of(unit)
            .is_some_and(|(_, program)| program.optional)
    }
}
