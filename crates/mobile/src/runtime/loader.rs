//! The thread that compiles code, so that calls of other code go on meanwhile. It starts with the
//! first job, and ends with the runtime.
//!
//! # Invariants
//! L1 The units whose calls need code take turns: much code of one of them holds up that of the
//!    others by one compilation each. Code that several units need waits in the
//!    shortest of their queues.
//! L2 When it is decided anew which code runs, jobs of the decision before are dropped. So each
//!    code has one job at most.

use super::locked;
use super::ready::Ready;
use crate::capsule::{Capsule, Part, Processor};
use samite_engines::{Engine, Kind};
use samite_fabric::Fabric;
use samite_fabric::rpc::Life;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};

/// Code to compile.
pub(super) struct Job {
    pub(super) id: u64,
    /// The unit whose call needs it.
    pub(super) caller: Life,
    /// The number of the decision that allows the parts.
    pub(super) decision: u64,
    pub(super) capsule: Capsule,
    /// The parts that are allowed here.
    pub(super) parts: Vec<Part>,
    /// To say that it is done. Dropped with the job, so that it does not keep the process in its
    /// domain.
    pub(super) fabric: Fabric,
}

/// An engine; or which one is missing, and why.
type Loadable = Result<Box<dyn Engine>, (Kind, String)>;

/// An id, the number of the decision, and what became of the code.
type Loaded = (u64, u64, Result<Ready, NotLoaded>);

/// Why code was not loaded.
#[derive(Debug)]
pub(super) enum NotLoaded {
    /// It is not code that runs here.
    Refused(String),
    /// The next call may try again.
    ForNow(String),
}

/// The jobs of each unit that has some, in the order of their turns.
#[derive(Default)]
struct Jobs {
    of_units: VecDeque<(Life, VecDeque<Job>)>,
    has_ended: bool,
}

impl Jobs {
    fn add(&mut self, job: Job) {
        let mut units = self.of_units.iter_mut();
        match units.find(|(caller, _)| *caller == job.caller) {
            Some((_, jobs)) => jobs.push_back(job),
            None => self.of_units.push_back((job.caller, [job].into())),
        }
    }

    /// Moves a job into the queue of a unit that needs its code, too, if its turn comes earlier
    /// there.
    fn wanted_by(&mut self, id: u64, unit: Life) {
        let waits = |of: Life| {
            let mut units = self.of_units.iter();
            units
                .find(|(caller, _)| *caller == of)
                .map_or(0, |(_, jobs)| jobs.len())
        };
        let before = waits(unit);
        let mut places = self.of_units.iter().enumerate();
        let found = places.find_map(|(at, (_, jobs))| {
            let job = jobs.iter().position(|job| job.id == id)?;
            Some((at, job))
        });
        let Some((at, place)) = found.filter(|(_, place)| before < *place) else {
            return;
        };
        if let Some(job) = self.of_units[at].1.remove(place) {
            self.add(Job {
                caller: unit,
                ..job
            });
        }
    }

    fn next(&mut self) -> Option<Job> {
        let (caller, mut jobs) = self.of_units.pop_front()?;
        let job = jobs.pop_front();
        if !jobs.is_empty() {
            self.of_units.push_back((caller, jobs));
        }
        job
    }
}

/// What the thread shares with the others.
#[derive(Default)]
struct Shared {
    jobs: Mutex<Jobs>,
    /// There is a job, or the runtime has ended.
    changed: Condvar,
    loaded: Mutex<VecDeque<Loaded>>,
}

/// See the module's documentation.
#[derive(Default)]
pub(super) struct Loader {
    shared: Arc<Shared>,
    /// Whether the thread was started.
    runs: Mutex<bool>,
    /// As if the system started no threads.
    #[cfg(test)]
    pub(super) has_no_threads: std::sync::atomic::AtomicBool,
}

impl std::fmt::Debug for Loader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Loader").finish_non_exhaustive()
    }
}

impl Loader {
    /// Has code compiled.
    pub(super) fn load(&self, job: Job) {
        match self.start() {
            Ok(()) => {
                locked(&self.shared.jobs).add(job);
                self.shared.changed.notify_one();
            }
            Err(error) => {
                let why = format!("no thread can be started there to compile code: {error}");
                let failed = (job.id, job.decision, Err(NotLoaded::ForNow(why)));
                locked(&self.shared.loaded).push_back(failed);
                job.fabric.want_work();
            }
        }
    }

    /// Another unit needs this code: it does not wait for all code of the first one (L1).
    pub(super) fn wanted_by(&self, id: u64, unit: Life) {
        locked(&self.shared.jobs).wanted_by(id, unit);
    }

    /// Starts the thread, if it does not run yet.
    fn start(&self) -> std::io::Result<()> {
        let mut runs = locked(&self.runs);
        #[cfg(test)]
        if self
            .has_no_threads
            .load(std::sync::atomic::Ordering::Relaxed)
        {
            return Err(std::io::ErrorKind::WouldBlock.into());
        }
        if !*runs {
            let shared = self.shared.clone();
            let builder = std::thread::Builder::new().name("samite loader".into());
            builder.spawn(move || run(&shared))?;
            *runs = true;
        }
        Ok(())
    }

    /// Drops the jobs that have not begun: it is decided anew which code runs.
    pub(super) fn forget(&self) {
        let dropped = std::mem::take(&mut locked(&self.shared.jobs).of_units);
        drop(dropped); // Without the lock.
    }

    /// Has jobs wait: no thread does them.
    #[cfg(test)]
    pub(super) fn without_thread(&self) {
        let ran = std::mem::replace(&mut *locked(&self.runs), true);
        assert!(!ran, "it runs already");
    }

    /// Returns how many jobs wait.
    #[cfg(test)]
    pub(super) fn jobs(&self) -> usize {
        let jobs = locked(&self.shared.jobs);
        jobs.of_units.iter().map(|(_, jobs)| jobs.len()).sum()
    }

    /// Returns the next job that is done.
    #[inline]
    pub(super) fn take(&self) -> Option<Loaded> {
        locked(&self.shared.loaded).pop_front()
    }
}

impl Drop for Loader {
    fn drop(&mut self) {
        self.forget();
        locked(&self.shared.jobs).has_ended = true;
        self.shared.changed.notify_one();
    }
}

fn run(shared: &Shared) {
    let engines = engines();
    let next = || {
        let mut jobs = locked(&shared.jobs);
        while !jobs.has_ended {
            if let Some(job) = jobs.next() {
                return Some(job);
            }
            let woken = shared.changed.wait(jobs);
            jobs = woken.unwrap_or_else(PoisonError::into_inner);
        }
        None
    };
    while let Some(job) = next() {
        // A panic of an engine ends this job, not the thread.
        let prepared = catch_unwind(AssertUnwindSafe(|| prepare(&engines, &job)));
        let ready = prepared.unwrap_or_else(|_| Err("the engine failed on this code".into()));
        let ready = ready.map_err(NotLoaded::Refused);
        locked(&shared.loaded).push_back((job.id, job.decision, ready));
        job.fabric.want_work();
    }
}

/// The engines of this build, the fastest code first. LLVM is loaded when the first bitcode comes.
fn engines() -> Vec<Loadable> {
    vec![
        Ok(Box::new(samite_engines::elf::Elf)),
        Ok(Box::new(Bitcode)),
        #[cfg(feature = "wasm")]
        match samite_engines::wasm::Wasm::new() {
            Ok(wasm) => Ok(Box::new(wasm)),
            Err(error) => Err((Kind::Wasm, error.to_string())),
        },
    ]
}

/// The engine for bitcode, which loads LLVM when it is first used.
struct Bitcode;

impl Engine for Bitcode {
    fn kind(&self) -> Kind {
        Kind::Bitcode
    }

    fn prepare(
        &self,
        code: &[u8],
        entries: &[String],
    ) -> Result<Box<dyn samite_engines::Code>, samite_engines::Refused> {
        static LLVM: OnceLock<Result<samite_engines::bitcode::Bitcode, samite_engines::Refused>> =
            OnceLock::new();
        let llvm = LLVM.get_or_init(|| samite_engines::bitcode::Bitcode::new(None));
        llvm.as_ref().map_err(Clone::clone)?.prepare(code, entries)
    }
}

/// Compiles the first part that an engine accepts.
///
/// # Errors
/// Why each part was refused.
fn prepare(engines: &[Loadable], job: &Job) -> Result<Ready, String> {
    let mut refused = Vec::new();
    for engine in engines {
        let kind = match engine {
            Ok(engine) => engine.kind(),
            Err((kind, _)) => *kind,
        };
        let is_for_here = |part: &&Part| {
            let here = [Processor::Any, Processor::HERE];
            part.kind == kind && here.contains(&part.processor)
        };
        for part in job.parts.iter().filter(is_for_here) {
            let prepared = match engine {
                Ok(engine) => engine
                    .prepare(job.capsule.part(part), job.capsule.entries())
                    .map_err(|error| error.to_string()),
                Err((_, why)) => Err(why.clone()),
            };
            match prepared {
                Ok(code) => return Ok(Ready::new(kind, Arc::from(code))),
                Err(why) => refused.push(format!("{kind}: {why}")),
            }
        }
    }
    match refused.is_empty() {
        true => Err(format!(
            "capsule {} has no code for this processor ({}) and the engines of this build",
            job.capsule.hash(),
            Processor::HERE.name()
        )),
        false => Err(refused.join("; ")),
    }
}

#[cfg(all(test, feature = "wasm"))]
mod tests {
    use super::*;
    use samite_fabric::{Config, Identity, PeerId};

    fn caller(peer: u32) -> Life {
        Life {
            peer: PeerId(peer),
            incarnation: 1,
        }
    }

    /// Much code of one unit does not hold up that of others. Jobs of an earlier decision are not
    /// done.
    #[test]
    fn units_take_turns() {
        let fabric = Fabric::alone(Identity::by_hand("turns"), Config::default()).unwrap();
        let capsule = Capsule::builder(["run"]).wasm(*b"no module").build();
        let capsule = capsule.unwrap();
        let job = |id, peer, decision| Job {
            id,
            caller: caller(peer),
            decision,
            parts: capsule.parts().to_vec(),
            capsule: capsule.clone(),
            fabric: fabric.clone(),
        };
        let loader = Loader::default();
        loader.without_thread();
        for id in 0..4 {
            loader.load(job(id, 1, 1));
        }
        loader.forget();
        for (id, peer) in [(10, 1), (11, 1), (12, 1), (20, 2), (21, 2), (30, 3)] {
            loader.load(job(id, peer, 2));
        }
        let next = || locked(&loader.shared.jobs).next().map(|job| job.id);
        let all: Vec<u64> = std::iter::from_fn(next).collect();
        assert_eq!(all, [10, 20, 30, 11, 21, 12]);
        // Code that a second unit needs, too, does not wait for all of the first one.
        for (id, peer) in [(10, 1), (11, 1), (12, 1), (13, 1), (20, 2)] {
            loader.load(job(id, peer, 2));
        }
        loader.wanted_by(13, caller(2));
        loader.wanted_by(20, caller(1)); // It would wait longer there.
        loader.wanted_by(12, caller(3));
        let all: Vec<u64> = std::iter::from_fn(next).collect();
        assert_eq!(all, [10, 20, 12, 11, 13]);
        assert_eq!(loader.jobs(), 0);
    }

    /// Without LLVM, bitcode is refused with what to install, and another part runs.
    #[test]
    fn an_engine_that_is_missing_says_so() {
        let wasm = samite_engines::wasm::Wasm::new().unwrap();
        let missing = Err((Kind::Bitcode, "install libllvm22".to_owned()));
        let engines: Vec<Loadable> = vec![missing, Ok(Box::new(wasm))];
        let fabric = Fabric::alone(Identity::by_hand("loader"), Config::default()).unwrap();
        let load = |capsule: Capsule| {
            let job = Job {
                id: capsule.hash().id(),
                caller: caller(0),
                decision: 0,
                parts: capsule.parts().to_vec(),
                capsule,
                fabric: fabric.clone(),
            };
            prepare(&engines, &job).map(|ready| ready.kind)
        };
        let bitcode = || Capsule::builder(["run"]).bitcode(Processor::HERE, 22, *b"BC");
        let refused = load(bitcode().build().unwrap()).unwrap_err();
        assert_eq!(refused, "bitcode: install libllvm22");
        let module = r#"(module (func (export "run") (param i32 i32) (result i32) (i32.const 0)))"#;
        let both = bitcode().wasm(wat::parse_str(module).unwrap());
        assert_eq!(load(both.build().unwrap()), Ok(Kind::Wasm));
        let other = match Processor::HERE {
            Processor::Arm => Processor::X86,
            _ => Processor::Arm,
        };
        let elsewhere = Capsule::builder(["run"]).elf(other, *b"\x7fELF");
        let refused = load(elsewhere.build().unwrap()).unwrap_err();
        assert!(refused.contains("no code for this processor"), "{refused}");
    }
}
