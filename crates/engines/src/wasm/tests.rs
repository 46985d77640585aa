//! Kernels in text, run by the engine alone.

use super::*;
use crate::{Effect, Grant, Limits, Rights};
use samite_mem::Arena;
use std::time::Duration;

const HEAD: &str = r#"(module
  (import "samite" "memory" (memory 1))
  (import "samite" "reply" (func $reply (param i32 i32)))
  (import "samite" "load64" (func $load64 (param i32 i64) (result i64)))
  (import "samite" "add64" (func $add64 (param i32 i64 i64) (result i64)))
  (import "samite" "base" (func $base (param i32) (result i32)))
  (import "samite" "forward" (func $forward (param i32 i32 i32 i32)))
  (import "samite" "spawn" (func $spawn (param i32 i32 i32 i32)))
  (import "samite" "define" (func $define (param i32 i32) (result i32)))
  (func (export "run") (param $at i32) (param $len i32) (result i32) "#;

/// Limits of kernels that end by themselves, however busy the machine is.
fn patient() -> Limits {
    Limits {
        run: Duration::from_secs(60),
        time: Duration::from_secs(60),
        ..Limits::default()
    }
}

fn instance(body: &str, grants: &Grants) -> Box<dyn Instance> {
    let code = wat::parse_str(format!("{HEAD} {body} (i32.const 0)))")).unwrap();
    let wasm = Wasm::new().unwrap();
    assert_eq!(entries(&code).unwrap(), ["run"]);
    let code = wasm.prepare(&code, &["run".into()]).unwrap();
    code.instance(grants).unwrap()
}

fn run(body: &str, grants: &Grants, limits: Limits) -> (Box<Context>, Result<(), Trap>) {
    let mut context = Context::new(1, 4, grants.clone());
    context.begin(limits, 0, 0);
    instance(body, grants).call(0, Box::new(context), b"abcdefgh")
}

fn granted(bytes: u64, rights: Rights) -> (Arena, Grants) {
    let arena = Arena::create(8 << 20).unwrap();
    let bytes = arena.bytes(0, bytes).unwrap();
    bytes.u64(8).store(42, std::sync::atomic::Ordering::Relaxed);
    (
        arena,
        Grants::default().with(3, Some(Grant { bytes, rights })),
    )
}

#[test]
fn a_kernel_gets_its_payload_and_replies() {
    let echo = "(call $reply (local.get $at) (local.get $len))";
    let (context, ended) = run(echo, &Grants::default(), patient());
    assert_eq!((ended, context.replied()), (Ok(()), Some(&b"abcdefgh"[..])));
}

#[test]
fn a_segment_is_mapped_or_reached_by_functions() {
    let sum = "(i64.store (local.get $at) (i64.add (call $load64 (i32.const 3) (i64.const 8))
        (i64.load offset=8 (call $base (i32.const 3)))))
        (call $reply (local.get $at) (i32.const 8))";
    let (_arena, grants) = granted(2 << 20, Rights::Read);
    let (context, ended) = run(sum, &grants, patient());
    assert_eq!(
        (ended, context.replied()),
        (Ok(()), Some(&84_u64.to_le_bytes()[..]))
    );
    // One that does not consist of whole pages is not mapped, however long it is.
    let base = "(i32.store (local.get $at) (call $base (i32.const 3)))
        (call $reply (local.get $at) (i32.const 4))";
    for len in [4095, (2 << 20) + 8] {
        let (_arena, grants) = granted(len, Rights::Read);
        let (context, ended) = run(base, &grants, patient());
        assert_eq!((ended, context.replied()), (Ok(()), Some(&[0; 4][..])));
    }
}

#[test]
fn a_store_into_a_mapped_segment_is_seen_by_others() {
    let store = "(i64.store offset=16 (call $base (i32.const 3)) (i64.const 7))
        (drop (call $add64 (i32.const 3) (i64.const 8) (i64.const 1)))";
    let (arena, grants) = granted(2 << 20, Rights::Write);
    let (_, ended) = run(store, &grants, patient());
    let word = |at| (arena.bytes(at, 8).unwrap().u64(0)).load(std::sync::atomic::Ordering::Relaxed);
    assert_eq!((ended, word(16), word(8)), (Ok(()), 7, 43));
}

#[test]
fn what_is_not_granted_is_refused() {
    let (_arena, grants) = granted(2 << 20, Rights::Read);
    let add = "(drop (call $add64 (i32.const 3) (i64.const 8) (i64.const 1)))";
    let wants = Rights::Write;
    let (grant, has) = (3, Rights::Read);
    let refused = Err(Trap::Rights { grant, wants, has });
    assert_eq!(run(add, &grants, patient()).1, refused);

    let store = "(i64.store (call $base (i32.const 3)) (i64.const 7))";
    let trap = run(store, &grants, patient()).1.unwrap_err();
    assert!(matches!(trap, Trap::Memory(_)), "{trap:?}");

    // Bulk operations are functions of the host: they do not reach the window at all.
    for bulk in [
        "(memory.fill (call $base (i32.const 3)) (i32.const 0) (i32.const 1000000))",
        "(memory.copy (call $base (i32.const 3)) (local.get $at) (i32.const 1000))",
        "(memory.copy (local.get $at) (call $base (i32.const 3)) (i32.const 1000))",
    ] {
        let trap = run(bulk, &grants, patient()).1.unwrap_err();
        assert!(matches!(trap, Trap::Memory(_)), "{trap:?}");
    }

    let load = "(drop (call $load64 (i32.const 2) (i64.const 8)))";
    assert_eq!(run(load, &grants, patient()).1, Err(Trap::NotGranted(2)));
    let load = "(drop (call $load64 (i32.const 3) (i64.const 8)))";
    let none = Limits {
        grants: 0,
        ..patient()
    };
    assert_eq!(run(load, &grants, none).1, Err(Trap::NotGranted(3)));

    let far = "(drop (call $load64 (i32.const 3) (i64.const -8)))";
    let trap = run(far, &grants, patient()).1.unwrap_err();
    assert!(matches!(trap, Trap::Range { grant: 3, .. }), "{trap:?}");
}

#[test]
fn a_kernel_that_does_not_end_or_leaves_its_memory_is_stopped() {
    let short = Limits {
        run: Duration::from_millis(2),
        ..patient()
    };
    let none = Grants::default();
    assert_eq!(run("(loop (br 0))", &none, short).1, Err(Trap::Time));
    let limits = patient();
    let outside = "(drop (i32.load (i32.const 0x7fffffff)))";
    let trap = run(outside, &none, limits).1.unwrap_err();
    assert!(matches!(trap, Trap::Memory(_)), "{trap:?}");
    let deep = "(drop (call 7 (local.get $at) (local.get $len)))";
    assert_eq!(run(deep, &none, limits).1, Err(Trap::Stack));
    let grow = "(if (i32.ne (memory.grow (i32.const 1)) (i32.const -1)) (then unreachable))";
    assert_eq!(run(grow, &none, limits).1, Ok(()));
    let reply = "(call $reply (i32.const -1) (i32.const 8))";
    let trap = run(reply, &none, limits).1.unwrap_err();
    assert!(matches!(trap, Trap::Memory(_)), "{trap:?}");
}

#[test]
fn effects_are_counted_and_checked() {
    let none = Grants::default();
    let go = "(call $forward (i32.const 3) (i32.const 0) (local.get $at) (i32.const 4))";
    let (context, ended) = run(go, &none, patient());
    assert_eq!(ended, Ok(()));
    assert!(context.is_forwarded());
    let Effect::Forward {
        unit: 3,
        entry: 0,
        payload,
    } = &context.effects()[0]
    else {
        panic!("{:?}", context.effects())
    };
    assert_eq!(context.bytes(payload), b"abcd");

    let gone = Limits {
        hops: 0,
        ..patient()
    };
    let trap = run(go, &none, gone).1.unwrap_err();
    assert!(matches!(trap, Trap::Forbidden(_)), "{trap:?}");
    let nobody = "(call $forward (i32.const 4) (i32.const 0) (local.get $at) (i32.const 4))";
    assert_eq!(run(nobody, &none, patient()).1, Err(Trap::NoUnit(4)));
    let bomb = "(loop (call $spawn (i32.const 0) (i32.const 0) (local.get $at) (i32.const 4))
        (br 0))";
    let many = Err(Trap::Effects(Limits::EFFECTS));
    assert_eq!(run(bomb, &none, patient()).1, many);
}

/// A message costs a hop, and definitions cost none.
#[test]
fn a_kernel_sends_no_more_than_it_has_hops() {
    let none = Grants::default();
    let limits = |hops| Limits { hops, ..patient() };
    let two = "(drop (call $define (local.get $at) (i32.const 8)))
        (call $spawn (i32.const 0) (i32.const 0) (local.get $at) (i32.const 4))
        (call $forward (i32.const 0) (i32.const 0) (local.get $at) (i32.const 4))";
    let forbidden = |ended| matches!(ended, Err(Trap::Forbidden(_)));
    assert!(forbidden(run(two, &none, limits(0)).1));
    assert!(forbidden(run(two, &none, limits(1)).1));
    let (context, ended) = run(two, &none, limits(2));
    assert_eq!((ended, context.effects().len()), (Ok(()), 3));
}

/// Modules with changed bytes are refused, or run in their own memory: whatever they do, the
/// process lives.
#[test]
fn mutated_modules_are_refused_or_stay_in_their_memory() {
    let body = "(local $n i32)
        (loop (i32.store (local.get $n) (i32.add (local.get $at) (local.get $n)))
            (local.set $n (i32.add (local.get $n) (i32.const 8)))
            (br_if 0 (i32.lt_u (local.get $n) (i32.const 800))))
        (i64.store (call $base (i32.const 3)) (i64.const 7))
        (memory.fill (i32.const 8) (i32.const 1) (i32.const 100))
        (drop (call $add64 (i32.const 3) (i64.const 8) (i64.const 1)))
        (call $forward (i32.const 3) (i32.const 0) (local.get $at) (i32.const 4))";
    let module = wat::parse_str(format!("{HEAD} {body} (i32.const 0)))")).unwrap();
    let (arena, grants) = granted(2 << 20, Rights::Write);
    let guard = arena.bytes(4 << 20, 4096).unwrap();
    let wasm = Wasm::new().unwrap();
    let limits = Limits {
        run: Duration::from_millis(2),
        ..patient()
    };
    let (mut ran, mut refused) = (0, 0);
    // Another processor is emulated, and compiles hardly one a second.
    let rounds = if cfg!(target_arch = "x86_64") {
        300
    } else {
        30
    };
    samite_testkit::fuzz::rounds(
        "wasm::tests::mutated_modules_are_refused_or_stay_in_their_memory",
        rounds,
        |_, random| {
            let mut code = module.clone();
            for _ in 0..random.usize(1..3) {
                let at = random.usize(8..code.len());
                code[at] = random.u8(..);
            }
            // The names of entries may have changed, too.
            let entries = entries(&code).unwrap_or_default();
            let code = match wasm.prepare(&code, &entries) {
                Ok(code) if !entries.is_empty() => code,
                _ => return refused += 1,
            };
            let Ok(mut instance) = code.instance(&grants) else {
                return refused += 1;
            };
            let mut context = Context::new(1, 4, grants.clone());
            context.begin(limits, 0, 0);
            let (_, _) = instance.call(0, Box::new(context), b"abcdefgh");
            ran += 1;
        },
    );
    assert!(ran > 0 && refused > 0, "{ran} ran, {refused} did not");
    let mut bytes = vec![0; 4096];
    guard.read(0, &mut bytes);
    assert!(bytes.iter().all(|byte| *byte == 0), "what is not granted");
}

#[test]
fn code_that_wants_more_than_is_offered_is_refused() {
    let wasm = Wasm::new().unwrap();
    let prepare = |text: &str, entry: &str| {
        let code = wat::parse_str(text).unwrap();
        let refused = wasm.prepare(&code, &[entry.into()]).map(|_| ());
        refused.unwrap_err().to_string()
    };
    let file = r#"(module (import "wasi" "fd_write" (func)))"#;
    assert!(prepare(file, "run").contains("wasi.fd_write"));
    let own = r#"(module (memory (export "memory") 1))"#;
    assert!(prepare(own, "run").contains("--import-memory"));
    let large = r#"(module (import "samite" "memory" (memory 257)))"#;
    assert!(prepare(large, "run").contains("256 pages"));
    assert!(prepare("(module)", "run").contains("`run`"));
    let starts = r#"(module (func $run (export "run")) (start $run))"#;
    assert!(prepare(starts, "run").contains("start"));
    // The compiler would have a table of 20,000 variables by 8000 blocks.
    let (locals, loops) = (" i32".repeat(20_000), "(loop)".repeat(2_000));
    let large = format!("(module (func (local{locals}) {loops}))");
    assert!(prepare(&large, "run").contains("variables and branches"));
    for more in ["(memory 1)", "(table 100000 funcref)"] {
        let text = format!(
            r#"(module {more} (func (export "run") (param i32 i32) (result i32)
            (i32.const 0)))"#
        );
        let code = wasm.prepare(&wat::parse_str(text).unwrap(), &["run".into()]);
        assert!(
            code.unwrap().instance(&Grants::default()).is_err(),
            "{more}"
        );
    }
    assert!(wasm.prepare(b"\0asm\x01\0\0\0garbage", &[]).is_err());
}
