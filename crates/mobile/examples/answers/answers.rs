//! Runs each entry of a capsule with the same payloads and segments on each engine, and calls some
//! of them as units call code.

use samite_engines::bitcode::Bitcode;
use samite_engines::elf::Elf;
use samite_engines::wasm::Wasm;
use samite_engines::{
    Code, Context, Effect, Engine, Function, Grant, Grants, Instance, Kind, Limits, Refused,
    Rights, Trap,
};
use samite_fabric::{Config, Fabric, Identity};
use samite_mem::Arena;
use samite_mobile::{Capsule, Error, Mobile, Part, Policy, Trust};
use std::time::Duration;

/// Bytes of segments 3 and 4. They are mapped in WebAssembly, too.
const LONG: u64 = 2 << 20;
/// Bytes of segment 5, which is not.
const SHORT: u64 = 4000;
/// Those segments.
const WRITTEN: u32 = 3;
const READ: u32 = 4;
const BRIEF: u32 = 5;
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

/// The entries that are functions of this program, too: those that use no mapped memory.
pub(crate) const FUNCTIONS: [&str; 6] =
    ["about", "words", "copies", "effects", "fails", "forbidden"];

/// The kinds of code that capsules have.
const CODE: [Kind; 3] = [Kind::Wasm, Kind::Bitcode, Kind::Elf];
/// What is called as units call code.
const CALLED: [&str; 4] = ["words", "copies", "fails", "forbidden"];

/// What [`called`] names an engine.
pub(crate) fn call_of(kind: Kind) -> String {
    format!("call of {kind}")
}

/// Returns the answers of all engines that have a part for this processor; for one that is not
/// there, a single answer that says why. Those of functions do not depend on the capsule.
pub(crate) fn answers(capsule: &Capsule) -> Vec<Answer> {
    let mut all = of_code(Kind::Function, &functions(), &FUNCTIONS.map(str::to_owned));
    for kind in CODE {
        let Some(part) = part_of(capsule, kind) else {
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

/// Returns the part of a capsule that an engine runs here.
fn part_of(capsule: &Capsule, kind: Kind) -> Option<&Part> {
    let mut parts = capsule.parts().iter();
    parts.find(|part| part.kind == kind && part.processor.is_here())
}

/// Has a unit call itself, with capsules that have one part each: they are looked up, trusted,
/// compiled beside the calls, and run on segments that the unit has granted.
pub(crate) fn called(capsule: &Capsule) -> Vec<Answer> {
    let long = Duration::from_secs(300); // The machine may be busy, and emulated.
    let config = Config {
        deadline: long,
        ..Config::default()
    };
    let fabric = Fabric::alone(Identity::by_hand("answers"), config).unwrap();
    let mobile = Mobile::new(&fabric).unwrap();
    mobile.set_policy(Policy {
        trust: Trust::Everything,
        run_max: long,
        ..Policy::default()
    });
    let granted = [
        (WRITTEN, LONG, Rights::Write),
        (READ, LONG, Rights::Read),
        (BRIEF, SHORT, Rights::Write),
    ];
    let segments = granted.map(|(number, len, rights)| {
        let segment = fabric.allocate(len).unwrap();
        mobile.grant(number as usize, segment.bytes(), rights);
        segment
    });
    let limits = Limits {
        run: long,
        time: long,
        ..Limits::default()
    };
    let mut all = Vec::new();
    for kind in CODE {
        let Some(part) = part_of(capsule, kind) else {
            continue;
        };
        let builder = Capsule::builder(capsule.entries());
        let code = capsule.part(part);
        let builder = match kind {
            Kind::Bitcode => builder.bitcode(part.processor, part.producer, code),
            Kind::Elf => builder.elf(part.processor, code),
            Kind::Wasm | Kind::Function => builder.wasm(code),
        };
        let code = mobile.register(builder.build().unwrap()).unwrap();
        for (entry, bytes) in CALLED
            .iter()
            .flat_map(|entry| PAYLOADS.map(|bytes| (entry, bytes)))
        {
            for (seed, segment) in (1..).zip(&segments) {
                let bytes = noise(seed, segment.bytes().len() as usize);
                segment.bytes().write(0, &bytes);
            }
            let number = capsule
                .entries()
                .iter()
                .position(|name| name == entry)
                .unwrap();
            let payload = noise(bytes as u64, bytes);
            let call = mobile.call_entry(0, &code, number as u8, &payload, limits);
            let did = match call.and_then(|call| call.wait()) {
                Ok(reply) => format!("replied {}", shown(&reply)),
                Err(Error::Failed(failure)) => {
                    format!("failed: {:?}, {}", failure.cause, failure.text)
                }
                Err(other) => format!("not called: {other}"),
            };
            let left = segments.each_ref().map(|segment| {
                let mut bytes = vec![0; segment.bytes().len() as usize];
                segment.bytes().read(0, &mut bytes);
                shown(&bytes)
            });
            all.push(Answer {
                engine: call_of(kind),
                call: format!("{entry}({bytes})"),
                did: format!("{did}, left {left:?}"),
            });
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

/// What the kernels of these names do, by the context.
fn functions() -> Function {
    let word = |payload: &[u8], at: usize| {
        let (words, _) = payload.as_chunks::<8>();
        u64::from_le_bytes(words[at])
    };
    Function::new(move |context, payload| {
        let found = [
            context.me().into(),
            context.units().into(),
            context.origin().into(),
            context.limits().hops.into(),
            context.len(WRITTEN)?,
            context.len(BRIEF)?,
            1, // C asks whether segment 4 has an address.
            u64::from(payload[0]) + payload.len() as u64,
        ];
        context.reply(found.map(u64::to_le_bytes).as_flattened())
    })
    .and(move |context, payload| {
        let (one, two) = (word(payload, 0), word(payload, 1));
        let mut found = [0; 6];
        found[0] = context.load(READ, 8 * (payload.len() as u64 % 1000))?;
        context.store(WRITTEN, 64, one)?;
        found[1] = context.fetch_add(WRITTEN, 64, two)?;
        found[2] = context.compare_exchange(WRITTEN, 64, one, 1)?;
        found[3] = context.compare_exchange(WRITTEN, 64, one.wrapping_add(two), 1)?;
        found[4] = context.load(WRITTEN, 64)?;
        context.store(BRIEF, 8, found[0])?;
        found[5] = context.fetch_add(BRIEF, 8, 3)?;
        context.reply(found.map(u64::to_le_bytes).as_flattened())
    })
    .and(|context, payload| {
        let mut payload = payload.to_vec();
        context.read(READ, 12345, &mut payload[1..])?;
        let key = [3, 141, 59, 26, 53, 58, 97, 93].into_iter().cycle();
        payload
            .iter_mut()
            .zip(key)
            .for_each(|(byte, key)| *byte ^= key);
        context.write(WRITTEN, 777, &payload)?;
        context.write(BRIEF, 1, &payload[..15])?;
        context.write(WRITTEN, 1, &[])?;
        context.reply(&payload)
    })
    .and(|context, payload| {
        for unit in 0..context.units() {
            context.spawn(unit, unit + 1, &payload[unit as usize..][..9])?;
        }
        let code = context.define(&payload[..5])?;
        context.inject(1, code, 0, &payload[..2])?;
        context.forward((context.me() + 1) % context.units(), 4, payload)
    })
    .and(|_, payload| {
        let (code, text) = (-(payload.len() as i32), "on purpose".into());
        Err(Trap::Failed { code, text })
    })
    .and(|context, payload| {
        context.store(READ, payload.len() as u64 % 8 * 8, 1)?;
        context.store(WRITTEN, 0, 1)
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
        (WRITTEN, &written, Rights::Write),
        (READ, &read, Rights::Read),
        (BRIEF, &short, Rights::Write),
    ];
    let grants = grants.into_iter().fold(Grants::default(), |all, grant| {
        let (number, bytes, rights) = (grant.0, grant.1.clone(), grant.2);
        all.with(number as usize, Some(Grant { bytes, rights }))
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
