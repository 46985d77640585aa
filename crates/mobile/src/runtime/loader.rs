//! The threads that compile code, so that calls of other code go on meanwhile: one for code with a
//! native part, on which LLVM may work for 20 s, and one for the rest. The second starts with the
//! runtime: it makes the engine for WebAssembly and uses it once, so that the first code of a
//! process does not wait for 2 ms. The first starts when the unit comes to trust native code, and
//! loads LLVM, which takes some 20 ms and 4 MB; other units load nothing. Both end with the
//! runtime.
//!
//! # Invariants
//! L1 The units whose calls need code take turns: much code of one of them holds up that of the
//!    others by one compilation each. Code that several units need waits in the
//!    shortest of their queues.
//! L2 When it is decided anew which code runs, jobs of the decision before are dropped. So each
//!    code has one job at most.
//! L3 A job is answered: `runs` of a lane is locked while a job is added, and while the thread
//!    ends.

use super::llvm::{Bitcode, check_producer};
use super::locked;
use super::ready::Ready;
use crate::capsule::{Capsule, Part, Processor};
use samite_engines::{Engine, Kind, Refused};
use samite_fabric::Fabric;
use samite_fabric::rpc::Life;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

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

/// A thread, and what it shares with the others.
#[derive(Default)]
struct Lane {
    jobs: Mutex<Jobs>,
    /// There is a job, or the runtime has ended.
    changed: Condvar,
    /// Whether the thread was started (L3).
    runs: Mutex<bool>,
    /// How often engines were made.
    #[cfg(test)]
    made: std::sync::atomic::AtomicU32,
    loaded: Arc<Mutex<VecDeque<Loaded>>>,
}

/// See the module's documentation.
pub(super) struct Loader {
    native: Arc<Lane>,
    portable: Arc<Lane>,
    /// What is done; shared by the lanes.
    loaded: Arc<Mutex<VecDeque<Loaded>>>,
    pub(super) bitcode: Bitcode,
    has_new_jobs: AtomicBool,
    /// As if the system started no threads.
    #[cfg(test)]
    pub(super) has_no_threads: AtomicBool,
}

impl std::fmt::Debug for Loader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Loader").finish_non_exhaustive()
    }
}

impl Loader {
    pub(super) fn new() -> Loader {
        let loaded = Arc::default();
        let lane = || {
            Arc::new(Lane {
                loaded: Arc::clone(&loaded),
                ..Lane::default()
            })
        };
        Loader {
            native: lane(),
            portable: lane(),
            loaded: Arc::clone(&loaded),
            bitcode: Bitcode::default(),
            has_new_jobs: AtomicBool::new(false),
            #[cfg(test)]
            has_no_threads: AtomicBool::new(false),
        }
    }

    fn lanes(&self) -> [&Arc<Lane>; 2] {
        [&self.native, &self.portable]
    }

    fn lane_of(&self, job: &Job) -> &Arc<Lane> {
        let is_native = |part: &Part| {
            part.processor.is_here() && matches!(part.kind, Kind::Bitcode | Kind::Elf)
        };
        match job.parts.iter().any(is_native) {
            true => &self.native,
            false => &self.portable,
        }
    }

    /// Has code compiled.
    pub(super) fn load(&self, job: Job) {
        let lane = self.lane_of(&job);
        let mut runs = locked(&lane.runs);
        match self.start(lane, &mut runs, |_, _| {}) {
            Ok(()) => {
                locked(&lane.jobs).add(job);
                lane.changed.notify_one();
                self.has_new_jobs.store(true, Relaxed);
            }
            Err(error) => lane.fail_for_now(
                &job,
                format!("no thread can be started there to compile code: {error}"),
            ),
        }
    }

    /// Another unit needs this code: it does not wait for all code of the first one (L1).
    pub(super) fn wanted_by(&self, id: u64, unit: Life) {
        for lane in self.lanes() {
            locked(&lane.jobs).wanted_by(id, unit);
        }
    }

    /// Has the engine for WebAssembly made before code comes. Without a thread, the first code
    /// tries again.
    pub(super) fn warm_up(&self) {
        self.prepare(&self.portable, |engines, _| warm_up(engines));
    }

    /// Has LLVM loaded before bitcode comes, as [`Loader::warm_up`].
    pub(super) fn warm_up_native(&self) {
        self.prepare(&self.native, |_, bitcode| bitcode.warm_up());
    }

    fn prepare(&self, lane: &Arc<Lane>, warm_up: fn(&[Loadable], &Bitcode)) {
        let mut runs = locked(&lane.runs);
        if let Err(error) = self.start(lane, &mut runs, warm_up) {
            tracing::debug!(%error, "there is no thread yet that compiles code");
        }
    }

    /// Starts the thread of a lane, if it does not run yet.
    fn start(
        &self,
        lane: &Arc<Lane>,
        runs: &mut bool,
        warm_up: fn(&[Loadable], &Bitcode),
    ) -> std::io::Result<()> {
        #[cfg(test)]
        if self.has_no_threads.load(Relaxed) {
            return Err(std::io::ErrorKind::WouldBlock.into());
        }
        if !*runs {
            let (lane, bitcode) = (lane.clone(), self.bitcode.clone());
            let builder = std::thread::Builder::new().name("samite loader".into());
            builder.spawn(move || {
                lane.run(|| {
                    let engines = engines(bitcode.clone());
                    warm_up(&engines, &bitcode);
                    engines
                });
            })?;
            *runs = true;
        }
        Ok(())
    }

    /// Drops the jobs that have not begun: it is decided anew which code runs.
    pub(super) fn forget(&self) {
        for lane in self.lanes() {
            let dropped = std::mem::take(&mut locked(&lane.jobs).of_units);
            drop(dropped); // Without the lock.
        }
    }

    /// Has jobs wait: no thread does them.
    #[cfg(test)]
    pub(super) fn without_thread(&self) {
        for lane in self.lanes() {
            let ran = std::mem::replace(&mut *locked(&lane.runs), true);
            assert!(!ran, "it runs already");
        }
    }

    /// Returns how many jobs wait.
    #[cfg(test)]
    pub(super) fn jobs(&self) -> usize {
        let jobs_of = |lane: &Arc<Lane>| {
            let jobs = locked(&lane.jobs);
            jobs.of_units
                .iter()
                .map(|(_, jobs)| jobs.len())
                .sum::<usize>()
        };
        self.lanes().into_iter().map(jobs_of).sum()
    }

    /// Returns whether there were new jobs since this was asked last.
    #[inline]
    pub(super) fn has_new_jobs(&self) -> bool {
        // ORDERING: Relaxed: a hint.
        self.has_new_jobs.load(Relaxed) && self.has_new_jobs.swap(false, Relaxed)
    }

    /// Returns the next job that is done.
    #[inline]
    pub(super) fn take(&self) -> Option<Loaded> {
        locked(&self.loaded).pop_front()
    }
}

impl Drop for Loader {
    fn drop(&mut self) {
        self.forget();
        for lane in self.lanes() {
            locked(&lane.jobs).has_ended = true;
            lane.changed.notify_one();
        }
    }
}

impl Lane {
    fn fail_for_now(&self, job: &Job, why: String) {
        let failed = (job.id, job.decision, Err(NotLoaded::ForNow(why)));
        locked(&self.loaded).push_back(failed);
        job.fabric.want_work();
    }

    fn next(&self) -> Option<Job> {
        let mut jobs = locked(&self.jobs);
        while !jobs.has_ended {
            if let Some(job) = jobs.next() {
                return Some(job);
            }
            let woken = self.changed.wait(jobs);
            jobs = woken.unwrap_or_else(PoisonError::into_inner);
        }
        None
    }

    /// The thread: makes the engines, and compiles what comes.
    fn run(&self, engines: impl FnOnce() -> Vec<Loadable>) {
        let Ok(engines) = catch_unwind(AssertUnwindSafe(engines)) else {
            // L3: the next job tries again.
            let mut runs = locked(&self.runs);
            *runs = false;
            let jobs = std::mem::take(&mut locked(&self.jobs).of_units);
            for job in jobs.into_iter().flat_map(|(_, jobs)| jobs) {
                self.fail_for_now(&job, "the engines could not be started there".into());
            }
            return;
        };
        #[cfg(test)]
        self.made.fetch_add(1, Relaxed);
        while let Some(job) = self.next() {
            // A panic of an engine ends this job, not the thread.
            let prepared = catch_unwind(AssertUnwindSafe(|| prepare(&engines, &job)));
            let ready = prepared.unwrap_or_else(|_| {
                Err(NotLoaded::Refused("the engine failed on this code".into()))
            });
            locked(&self.loaded).push_back((job.id, job.decision, ready));
            job.fabric.want_work();
        }
    }
}

/// The engines of this build, the fastest code first.
fn engines(bitcode: Bitcode) -> Vec<Loadable> {
    vec![
        Ok(Box::new(samite_engines::elf::Elf)),
        Ok(Box::new(bitcode)),
        #[cfg(feature = "wasm")]
        match samite_engines::wasm::Wasm::new() {
            Ok(wasm) => Ok(Box::new(wasm)),
            Err(error) => Err((Kind::Wasm, error.to_string())),
        },
    ]
}

#[cfg(not(feature = "wasm"))]
fn warm_up(_: &[Loadable]) {}

/// Compiles a little WebAssembly and makes an instance of it: the first time takes longer.
#[cfg(feature = "wasm")]
fn warm_up(engines: &[Loadable]) {
    let module = Capsule::from_wat(include_str!("warm_up.wat"));
    let engine = engines
        .iter()
        .flatten()
        .find(|engine| engine.kind() == Kind::Wasm);
    if let (Some(engine), Ok(module)) = (engine, module)
        && let Some(part) = module.parts().first()
    {
        let code = engine.prepare(module.part(part), module.entries());
        let ran = code.map(|code| code.instance(&samite_engines::Grants::default()).map(drop));
        tracing::debug!(?ran, "the engine for WebAssembly is ready");
    }
}

/// Compiles the first part that an engine accepts.
///
/// # Errors
/// Why each part was refused. If that of one may change, the next call may try again.
fn prepare(engines: &[Loadable], job: &Job) -> Result<Ready, NotLoaded> {
    let mut refused = Vec::new();
    let mut is_for_now = false;
    for engine in engines {
        let kind = match engine {
            Ok(engine) => engine.kind(),
            Err((kind, _)) => *kind,
        };
        let is_for_here = |part: &&Part| part.kind == kind && part.processor.is_here();
        for part in job.parts.iter().filter(is_for_here) {
            let prepared = match engine {
                Ok(engine) => check_producer(part).and_then(|()| {
                    let prepared = engine.prepare(job.capsule.part(part), job.capsule.entries());
                    prepared.map_err(|error| {
                        is_for_now |= matches!(error, Refused::ForNow(_));
                        error.to_string()
                    })
                }),
                Err((_, why)) => Err(why.clone()),
            };
            match prepared {
                Ok(code) => return Ok(Ready::new(kind, Arc::from(code))),
                Err(why) => refused.push(format!("{kind}: {why}")),
            }
        }
    }
    if refused.is_empty() {
        refused.push(format!(
            "capsule {} has no code for this processor ({}) and the engines of this build",
            job.capsule.hash(),
            Processor::HERE.name()
        ));
    }
    let why = refused.join("; ");
    Err(match is_for_now {
        true => NotLoaded::ForNow(why),
        false => NotLoaded::Refused(why),
    })
}

#[cfg(all(test, feature = "wasm"))]
mod tests {
    use super::*;
    use samite_engines::Code;
    use samite_fabric::{Config, Identity, PeerId};

    fn caller(peer: u32) -> Life {
        Life {
            peer: PeerId(peer),
            incarnation: 1,
        }
    }

    /// A processor that this process does not run on.
    fn other() -> Processor {
        match Processor::HERE {
            Processor::Arm => Processor::X86,
            _ => Processor::Arm,
        }
    }

    fn job(fabric: &Fabric, id: u64, capsule: Capsule) -> Job {
        Job {
            id,
            caller: caller(1),
            decision: 3,
            parts: capsule.parts().to_vec(),
            capsule,
            fabric: fabric.clone(),
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
            caller: caller(peer),
            decision,
            ..job(&fabric, id, capsule.clone())
        };
        let loader = Loader::new();
        loader.without_thread();
        for id in 0..4 {
            loader.load(job(id, 1, 1));
        }
        loader.forget();
        for (id, peer) in [(10, 1), (11, 1), (12, 1), (20, 2), (21, 2), (30, 3)] {
            loader.load(job(id, peer, 2));
        }
        let next = || locked(&loader.portable.jobs).next().map(|job| job.id);
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

    /// Waits for something that another thread does.
    fn until<T>(is_there: impl Fn() -> Option<T>) -> T {
        let begin = std::time::Instant::now();
        loop {
            if let Some(found) = is_there() {
                return found;
            }
            assert!(begin.elapsed().as_secs() < 60, "nothing comes");
            std::thread::yield_now();
        }
    }

    /// A thread that makes its engine before code comes does the jobs that come then; the module
    /// that it compiles for that is one that engines take.
    #[test]
    fn code_comes_after_the_engine() {
        let fabric = Fabric::alone(Identity::by_hand("early"), Config::default()).unwrap();
        let loader = Loader::new();
        loader.warm_up();
        let made = || loader.portable.made.load(Relaxed);
        until(|| (made() == 1).then_some(()));
        let capsule = Capsule::from_wat(include_str!("warm_up.wat")).unwrap();
        loader.load(job(&fabric, 7, capsule));
        let (id, decision, loaded) = until(|| loader.take());
        assert_eq!(made(), 1);
        assert_eq!((id, decision), (7, 3));
        let ready = loaded.unwrap();
        assert!(
            ready
                .code
                .instance(&samite_engines::Grants::default())
                .is_ok()
        );
    }

    /// Code with a native part does not hold up other code: it has a thread of its own.
    #[test]
    fn native_code_waits_apart() {
        let fabric = Fabric::alone(Identity::by_hand("lanes"), Config::default()).unwrap();
        let loader = Loader::new();
        loader.without_thread();
        let load = |id, capsule: crate::capsule::Builder| {
            loader.load(job(&fabric, id, capsule.build().unwrap()));
        };
        load(
            1,
            Capsule::builder(["run"]).bitcode(Processor::HERE, 22, *b"BC"),
        );
        load(
            2,
            Capsule::builder(["run"])
                .elf(Processor::HERE, *b"\x7fELF")
                .wasm(*b"x"),
        );
        load(3, Capsule::builder(["run"]).wasm(*b"x"));
        // Parts for any processor are tried here; those for another one are not.
        for (id, of) in [(4, Processor::Any), (5, other())] {
            let native = Capsule::builder(["run"]).bitcode(of, 22, *b"BC");
            load(id, native.elf(of, *b"\x7fELF").wasm(*b"x"));
        }
        let ids = |lane: &Lane| {
            let next = || locked(&lane.jobs).next().map(|job| job.id);
            std::iter::from_fn(next).collect::<Vec<u64>>()
        };
        assert_eq!(
            (ids(&loader.native), ids(&loader.portable)),
            (vec![1, 2, 4], vec![3, 5])
        );
    }

    /// If engines cannot be made, the jobs that wait are answered, and the next one tries again.
    #[test]
    fn jobs_are_answered_without_engines() {
        let fabric = Fabric::alone(Identity::by_hand("panics"), Config::default()).unwrap();
        let loader = Loader::new();
        loader.without_thread();
        let capsule = Capsule::builder(["run"]).wasm(*b"x").build().unwrap();
        loader.load(job(&fabric, 7, capsule));
        loader.portable.run(|| panic!("no memory"));
        let (id, decision, loaded) = loader.take().expect("an answer");
        assert_eq!((id, decision), (7, 3));
        assert!(matches!(loaded, Err(NotLoaded::ForNow(_))), "{loaded:?}");
        assert!(!*locked(&loader.portable.runs));
    }

    /// Without LLVM, bitcode is refused with what to install, and another part runs.
    #[test]
    fn an_engine_that_is_missing_says_so() {
        let wasm = samite_engines::wasm::Wasm::new().unwrap();
        let missing = Err((Kind::Bitcode, "install libllvm22".to_owned()));
        let engines: Vec<Loadable> = vec![missing, Ok(Box::new(wasm))];
        let fabric = Fabric::alone(Identity::by_hand("loader"), Config::default()).unwrap();
        let load = |capsule: Capsule| {
            let loaded = prepare(&engines, &job(&fabric, 7, capsule));
            loaded.map(|ready| ready.kind).map_err(|why| match why {
                NotLoaded::Refused(why) => why,
                NotLoaded::ForNow(why) => panic!("not for now: {why}"),
            })
        };
        let bitcode = || Capsule::builder(["run"]).bitcode(Processor::HERE, 22, *b"BC");
        let refused = load(bitcode().build().unwrap()).unwrap_err();
        assert_eq!(refused, "bitcode: install libllvm22");
        let module = r#"(module (func (export "run") (param i32 i32) (result i32) (i32.const 0)))"#;
        let both = bitcode().wasm(wat::parse_str(module).unwrap());
        assert_eq!(load(both.build().unwrap()), Ok(Kind::Wasm));
        let elsewhere = Capsule::builder(["run"]).elf(other(), *b"\x7fELF");
        let refused = load(elsewhere.build().unwrap()).unwrap_err();
        assert!(refused.contains("no code for this processor"), "{refused}");
    }

    /// An engine that lacks something for the moment.
    struct Lacking;

    impl Engine for Lacking {
        fn kind(&self) -> Kind {
            Kind::Elf
        }

        fn prepare(&self, _: &[u8], _: &[String]) -> Result<Box<dyn Code>, Refused> {
            Err(Refused::ForNow("no file can be opened".into()))
        }
    }

    /// Code is not refused for good because an engine lacked something for a moment.
    #[test]
    fn what_is_lacking_for_a_moment_is_tried_again() {
        let fabric = Fabric::alone(Identity::by_hand("lacking"), Config::default()).unwrap();
        let engines: Vec<Loadable> = vec![Ok(Box::new(Lacking))];
        let capsule = Capsule::builder(["run"]).elf(Processor::HERE, *b"\x7fELF");
        let loaded = prepare(&engines, &job(&fabric, 7, capsule.build().unwrap()));
        assert!(matches!(loaded, Err(NotLoaded::ForNow(_))), "{loaded:?}");
    }
}
