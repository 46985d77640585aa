//! Runs each entry of a capsule with the same payloads and segments on each engine.

use samite_engines::bitcode::Bitcode;
use samite_engines::elf::Elf;
use samite_engines::wasm::Wasm;
use samite_engines::{
    Code, Context, Effect, Engine, Grant, Grants, Instance, Kind, Limits, Refused, Rights, Trap,
};
use samite_mem::Arena;
use samite_mobile::{Capsule, Processor};
use std::time::Duration;

/// Bytes of segments 3 and 4. They are mapped in WebAssembly, too.
const LONG: u64 = 2 << 20;
/// Bytes of segment 5, which is not.
const SHORT: u64 = 4000;
/// Bytes of the payloads.
const PAYLOADS: [usize; 3] = [16, 1008, 65536];

/// What a call did, by engine, entry and length of the payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) engine: String,
    pub(crate) call: String,
    pub(crate) did: String,
}

impl std::fmt::Display for Answer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}\t{}\t{}", self.engine, self.call, self.did)
    }
}

/// Returns the answers of all engines that have a part for this processor; for one that is not
/// there, a single answer that says why.
pub(crate) fn answers(capsule: &Capsule) -> Vec<Answer> {
    let mut all = Vec::new();
    for kind in [Kind::Wasm, Kind::Bitcode, Kind::Elf] {
        let mut parts = capsule.parts().iter().filter(|part| part.kind == kind);
        let here = [Processor::Any, Processor::HERE];
        let Some(part) = parts.find(|part| here.contains(&part.processor)) else {
            continue;
        };
        let prepared =
            engine(kind).and_then(|engine| engine.prepare(capsule.part(part), capsule.entries()));
        match prepared {
            Ok(code) => all.extend(of_code(kind, &*code, capsule.entries())),
            Err(refused) => all.push(Answer {
                engine: kind.to_string(),
                call: "refused".into(),
                did: refused.to_string(),
            }),
        }
    }
    all
}

fn engine(kind: Kind) -> Result<Box<dyn Engine>, Refused> {
    Ok(match kind {
        Kind::Bitcode => Box::new(Bitcode::new(None)?),
        Kind::Elf => Box::new(Elf),
        Kind::Wasm | Kind::Function => Box::new(Wasm::new()?),
    })
}

fn of_code(kind: Kind, code: &dyn Code, entries: &[String]) -> Vec<Answer> {
    let mut all = Vec::new();
    for (number, entry) in entries.iter().enumerate() {
        for bytes in PAYLOADS {
            all.push(Answer {
                engine: kind.to_string(),
                call: format!("{entry}({bytes})"),
                did: call(code, number as u8, bytes),
            });
        }
    }
    all
}

/// Runs an entry with fresh segments, and says what it did to them.
fn call(code: &dyn Code, entry: u8, bytes: usize) -> String {
    let arena = Arena::create(4 * LONG).unwrap();
    let segment = |at: u64, len: u64| {
        let segment = arena.bytes(at * LONG, len).unwrap();
        segment.write(0, &noise(at + 1, len as usize));
        segment
    };
    let (written, read, short) = (segment(0, LONG), segment(1, LONG), segment(2, SHORT));
    let grants = [
        (3, &written, Rights::Write),
        (4, &read, Rights::Read),
        (5, &short, Rights::Write),
    ];
    let grants = grants.into_iter().fold(Grants::default(), |all, grant| {
        let (number, bytes, rights) = (grant.0, grant.1.clone(), grant.2);
        all.with(number, Some(Grant { bytes, rights }))
    });
    let mut context = Context::new(2, 5, grants.clone());
    let limits = Limits {
        // The machine may be busy, and emulated.
        run: Duration::from_secs(60),
        time: Duration::from_secs(60),
        hops: 9,
        ..Limits::default()
    };
    context.begin(limits, 1, 0);
    let mut instance = start(code, &grants);
    let payload = noise(bytes as u64, bytes);
    let (context, ended) = instance.call(entry, Box::new(context), &payload);
    let effects = context.effects().iter();
    let sent: Vec<String> = effects.map(|effect| effect_of(effect, &context)).collect();
    let segments = [written, read, short].map(|segment| {
        let mut bytes = vec![0; segment.len() as usize];
        segment.read(0, &mut bytes);
        shown(&bytes)
    });
    let reply = context.replied().map(shown);
    format!("{ended:?}, replied {reply:?}, sent {sent:?}, left {segments:?}")
}

/// Starts an instance. For WebAssembly this has a limit of time, which a busy machine exceeds.
fn start(code: &dyn Code, grants: &Grants) -> Box<dyn Instance> {
    for _ in 0..100 {
        match code.instance(grants) {
            Err(Trap::Other(why)) if why.contains("interrupt") => {}
            started => return started.unwrap(),
        }
    }
    panic!("no instance starts in time");
}

fn effect_of(effect: &Effect, context: &Context) -> String {
    let bytes = match effect {
        Effect::Forward { payload, .. } | Effect::Spawn { payload, .. } => payload,
        Effect::Define { code } => code,
    };
    format!("{effect:?} {}", shown(context.bytes(bytes)))
}

/// Returns short bytes in hexadecimal, and the hash of longer ones.
fn shown(bytes: &[u8]) -> String {
    match bytes.len() {
        0..=64 => bytes.iter().map(|byte| format!("{byte:02x}")).collect(),
        len => format!("{len} bytes {}", blake3::hash(bytes)),
    }
}

/// Returns bytes that look random, and are the same everywhere.
fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    let mut reader = blake3::Hasher::new_keyed(&[seed as u8; 32]).finalize_xof();
    reader.fill(&mut bytes);
    bytes
}
