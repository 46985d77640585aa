//! One source, compiled for each engine, does the same.

use crate::build::{Built, kernels};
use samite_engines::bitcode::Bitcode;
use samite_engines::elf::Elf;
use samite_engines::wasm::Wasm;
use samite_engines::{
    Code, Context, Effect, Engine, Grant, Grants, Instance, Kind, Limits, Rights, Trap,
};
use samite_mem::{Arena, SharedBytes};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// A segment that is mapped in WebAssembly, too.
const BYTES: u64 = 2 << 20;

/// The engines of this machine with the code for them.
pub(crate) fn engines(built: &Built) -> Vec<(Box<dyn Engine>, &[u8])> {
    vec![
        (Box::new(Wasm::new().unwrap()), &built.wasm),
        (Box::new(Bitcode::new(None).unwrap()), &built.bitcode),
        (Box::new(Elf), &built.elf),
    ]
}

/// What a call did.
#[derive(Debug, PartialEq)]
struct Did {
    ended: Result<(), Trap>,
    reply: Option<Vec<u8>>,
    effects: Vec<(Effect, Vec<u8>)>,
    /// What the segments were afterwards.
    segment: Vec<u8>,
}

/// Segment 3, to be written, and 4, to be read.
fn granted() -> (Arena, SharedBytes, Grants) {
    let arena = Arena::create(2 * BYTES).unwrap();
    let (first, second) = (0, BYTES);
    let segment = arena.bytes(first, BYTES).unwrap();
    // A list that visits all words, in an order that is not that of the addresses.
    let words = BYTES / 8;
    for word in 0..words {
        let next = (word * 5 + 7) % words;
        segment.u64(word * 8).store(next * 8, Relaxed);
    }
    let grant = |bytes: &SharedBytes, rights| {
        let bytes = bytes.clone();
        Some(Grant { bytes, rights })
    };
    let grants = Grants::default().with(3, grant(&segment, Rights::Write));
    let other = arena.bytes(second, BYTES).unwrap();
    let grants = grants.with(4, grant(&other, Rights::Read));
    (arena, segment, grants)
}

fn run(engine: &dyn Engine, code: &[u8], entry: &str, payload: &[u8], limits: Limits) -> Did {
    let (_arena, segment, grants) = granted();
    let code = engine.prepare(code, &[entry.to_owned()]).unwrap();
    let mut instance = start(&*code, &grants);
    let mut context = Context::new(2, 5, grants);
    context.begin(limits, 1, 0);
    let (context, ended) = instance.call(0, Box::new(context), payload);
    let effects = context.effects().iter().map(|effect| {
        let bytes = match effect {
            Effect::Forward { payload, .. } | Effect::Spawn { payload, .. } => payload,
            Effect::Define { code } => code,
        };
        (effect.clone(), context.bytes(bytes).to_vec())
    });
    let mut after = vec![0; 4096];
    segment.read(0, &mut after);
    Did {
        ended,
        reply: context.replied().map(<[u8]>::to_vec),
        effects: effects.collect(),
        segment: after,
    }
}

/// Starts an instance. For WebAssembly this has a short limit of time, which a busy machine
/// exceeds.
fn start(code: &dyn Code, grants: &Grants) -> Box<dyn Instance> {
    for _ in 0..100 {
        match code.instance(grants) {
            Err(Trap::Other(why)) if why.contains("interrupt") => {}
            started => return started.unwrap(),
        }
    }
    panic!("no instance starts in time");
}

/// A long time: other programs may be running.
fn limits() -> Limits {
    Limits {
        run: Duration::from_secs(60),
        time: Duration::from_secs(60),
        hops: 9,
        ..Limits::default()
    }
}

/// Runs an entry on all engines and returns what each did, which is the same.
fn all(test: &str, entry: &str, payload: &[u8], limits: Limits) -> Option<Did> {
    let built = kernels(test)?;
    let mut first: Option<(Kind, Did)> = None;
    for (engine, code) in engines(built) {
        let did = run(&*engine, code, entry, payload, limits);
        match &first {
            Some((kind, first)) => {
                assert_eq!(first, &did, "{entry}: {kind} and {}", engine.kind());
            }
            None => first = Some((engine.kind(), did)),
        }
    }
    first.map(|(_, did)| did)
}

fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

#[test]
fn replies_are_the_same() {
    let test = "same::replies_are_the_same";
    let reply = |entry: &str, payload: &[u8]| {
        let did = all(test, entry, payload, limits())?;
        assert_eq!(did.ended, Ok(()), "{entry}");
        Some(did.reply)
    };
    let Some(echoed) = reply("echo", b"woven") else {
        return;
    };
    assert_eq!(echoed, Some(b"woven".to_vec()));
    assert_eq!(reply("echo", &[7; 65536]), Some(Some(vec![7; 65536])));
    assert_eq!(reply("nothing", b""), Some(None));
    let place = words(&[2, 5, 1, 9, BYTES, 1, 0]);
    assert_eq!(reply("where", b""), Some(Some(place)));
    let mut at = 16;
    for _ in 0..1000 {
        at = (at / 8 * 5 + 7) % (BYTES / 8) * 8;
    }
    let steps = words(&[16, 1000]);
    assert_eq!(reply("chase", &steps), Some(Some(words(&[at]))));
    assert_eq!(reply("chase_mapped", &steps), Some(Some(words(&[at]))));
    // The upper half of each word is 0, the lower one below 2 MiB, each value once.
    let above = BYTES / 2;
    let sum: u64 = (above + 8..BYTES).step_by(8).sum();
    let mut expected = (sum as u32).to_le_bytes().to_vec();
    expected.extend((BYTES as u32 / 16 - 1).to_le_bytes());
    let above = (above as u32).to_le_bytes();
    assert_eq!(reply("filter", &above), Some(Some(expected)));
    assert_eq!(reply("atomics", b""), Some(Some(words(&[40, 42, 42, 1]))));
    // 300 bytes from byte 8 on, each with the length of the payload in it.
    let (_arena, segment, _) = granted();
    let mut copied = vec![0; 300];
    segment.read(8, &mut copied);
    copied.iter_mut().for_each(|byte| *byte ^= 3);
    let did = all(test, "copies", b"abc", limits()).unwrap();
    assert_eq!((did.ended, did.reply.as_ref()), (Ok(()), Some(&copied)));
    assert_eq!(did.segment[1001..1301], copied[..]);
}

#[test]
fn effects_are_the_same() {
    let test = "same::effects_are_the_same";
    let Some(did) = all(test, "forward", b"abcd", limits()) else {
        return;
    };
    let (forward, bytes) = &did.effects[0];
    assert!(matches!(
        forward,
        Effect::Forward {
            unit: 3,
            entry: 4,
            ..
        }
    ));
    assert_eq!((did.ended, &bytes[..]), (Ok(()), &b"bbcd"[..]));
    let did = all(test, "spawn", b"abcdefgh", limits()).unwrap();
    assert_eq!((did.ended, did.effects.len()), (Ok(()), 7));
    let none = Limits {
        hops: 0,
        ..limits()
    };
    let did = all(test, "forward", b"abcd", none).unwrap();
    assert!(matches!(did.ended, Err(Trap::Forbidden(_))), "{did:?}");
}

#[test]
fn wrong_uses_end_the_call_the_same_way() {
    let test = "same::wrong_uses_end_the_call_the_same_way";
    let range = |offset: u64| Trap::Range {
        grant: 3,
        offset,
        end: offset.saturating_add(8),
        bytes: BYTES,
    };
    let rights = Trap::Rights {
        grant: 4,
        wants: Rights::Write,
        has: Rights::Read,
    };
    let (grant, offset) = (3, 12);
    let (bytes, most) = (65537, 65536);
    // By case, as in `kernels.c`.
    let traps = [
        Trap::NotGranted(2),
        range(BYTES),
        Trap::Misaligned { grant, offset },
        rights.clone(),
        Trap::NoUnit(5),
        Trap::NoEntry(256),
        Trap::Forbidden("end twice"),
        Trap::Payload { bytes, most },
        Trap::failed(-5, "bad weather"),
        range(u64::MAX),
        rights,
        Trap::NoEntry(1),
        Trap::Forbidden("start more calls than it has hops left"),
        Trap::failed(7, ""),
        Trap::NotGranted(16),
        Trap::Payload { bytes, most },
    ];
    for (case, trap) in traps.into_iter().enumerate() {
        let payload = [case as u8, 0, 0, 0, 0, 0, 0, 0];
        let Some(did) = all(test, "wrong", &payload, limits()) else {
            return;
        };
        assert_eq!(did.ended, Err(trap), "case {case}");
        let word = u64::from_le_bytes(did.segment[128..136].try_into().unwrap());
        assert_ne!(word, 1, "case {case}: nothing is written after the trap");
    }
    let none = Limits {
        grants: 0,
        ..limits()
    };
    let did = all(test, "chase", &words(&[0, 1]), none).unwrap();
    assert_eq!(did.ended, Err(Trap::NotGranted(3)));
}

#[test]
fn threads_run_the_same_code_at_once() {
    let Some(built) = kernels("same::threads_run_the_same_code_at_once") else {
        return;
    };
    for (engine, bytes) in engines(built) {
        let code = engine
            .prepare(bytes, &["where".into(), "echo".into()])
            .unwrap();
        let mut instances: Vec<_> = (0..4).map(|_| start(&*code, &Grants::default())).collect();
        // Instances keep the code.
        drop((code, engine));
        std::thread::scope(|scope| {
            for (unit, instance) in instances.iter_mut().enumerate() {
                scope.spawn(move || {
                    let mut context = Box::new(Context::new(unit as u32, 4, Grants::default()));
                    for round in 0..1000_u64 {
                        context.begin(limits(), 0, 0);
                        let sent = words(&[unit as u64, round]);
                        let (returned, ended) = instance.call(1, context, &sent);
                        assert_eq!((ended, returned.replied()), (Ok(()), Some(&sent[..])));
                        context = returned;
                    }
                });
            }
        });
    }
}

#[test]
fn what_is_outside_of_the_limits_is_a_trap() {
    let Some(built) = kernels("same::what_is_outside_of_the_limits_is_a_trap") else {
        return;
    };
    for (engine, code) in engines(built) {
        assert!(engine.prepare(code, &[]).is_ok());
        let code = engine.prepare(code, &["echo".into()]).unwrap();
        let mut instance = start(&*code, &Grants::default());
        let mut context = Box::new(Context::new(0, 1, Grants::default()));
        context.begin(limits(), 0, 0);
        let (context, ended) = instance.call(1, context, b"");
        assert_eq!(ended, Err(Trap::NoEntry(1)));
        let (_, ended) = instance.call(0, context, &vec![0; 65537]);
        let (bytes, most) = (65537, 65536);
        assert_eq!(ended, Err(Trap::Payload { bytes, most }));
    }
}

#[test]
fn an_entry_that_is_missing_is_refused() {
    let Some(built) = kernels("same::an_entry_that_is_missing_is_refused") else {
        return;
    };
    for (engine, code) in engines(built) {
        let refused = engine.prepare(code, &["echo".into(), "memcpy".into()]);
        let text = refused.map(|_| ()).unwrap_err().to_string();
        assert!(text.contains("`memcpy`"), "{}: {text}", engine.kind());
    }
}
