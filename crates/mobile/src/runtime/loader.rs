//! The thread that compiles code, so that calls of other code go on meanwhile. It starts with the
//! first job, and ends with the runtime.

use super::locked;
use super::ready::Ready;
use crate::capsule::{Capsule, Part, Processor};
use samite_engines::{Engine, Kind};
use samite_fabric::Fabric;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, OnceLock};

/// Code to compile.
pub(super) struct Job {
    pub(super) id: u64,
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
type Loaded = (u64, u64, Result<Ready, String>);

/// See the module's documentation.
#[derive(Debug, Default)]
pub(super) struct Loader {
    jobs: OnceLock<Sender<Job>>,
    loaded: Arc<Mutex<VecDeque<Loaded>>>,
}

impl Loader {
    /// Has code compiled.
    pub(super) fn load(&self, job: Job) {
        let jobs = self.jobs.get_or_init(|| {
            let (jobs, inbox) = channel();
            let loaded = self.loaded.clone();
            let builder = std::thread::Builder::new().name("samite loader".into());
            let spawned = builder.spawn(move || run(&inbox, &loaded));
            if let Err(error) = spawned {
                tracing::warn!(%error, "no thread for compiling moved code");
            }
            jobs
        });
        if let Err(refused) = jobs.send(job) {
            let job = refused.0;
            let why = Err("no thread compiles code here".into());
            locked(&self.loaded).push_back((job.id, job.decision, why));
            job.fabric.want_work();
        }
    }

    /// Returns the next job that is done.
    #[inline]
    pub(super) fn take(&self) -> Option<Loaded> {
        locked(&self.loaded).pop_front()
    }
}

fn run(inbox: &Receiver<Job>, loaded: &Mutex<VecDeque<Loaded>>) {
    let engines = engines();
    while let Ok(job) = inbox.recv() {
        // A panic of an engine ends this job, not the thread.
        let prepared = catch_unwind(AssertUnwindSafe(|| prepare(&engines, &job)));
        let ready = prepared.unwrap_or_else(|_| Err("the engine failed on this code".into()));
        locked(loaded).push_back((job.id, job.decision, ready));
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

/// Compiles the first part that an engine takes; says of each one before why not.
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
    use samite_fabric::{Config, Identity};

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
