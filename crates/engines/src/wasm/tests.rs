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
    for pages in ["1", "65535", "-1"] {
        let grow = format!("(drop (memory.grow (i32.const {pages})))");
        let trap = run(&grow, &none, limits).1.unwrap_err();
        assert_eq!(
            trap,
            Trap::Memory("its memory does not grow".into()),
            "{pages}"
        );
    }
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
        (if (i32.eqz (local.get $len)) (then
            (i64.store (call $base (i32.const 4)) (i64.const 7))
            (drop (call $add64 (i32.const 4) (i64.const 8) (i64.const 1)))))
        (memory.fill (i32.const 8) (i32.const 1) (i32.const 100))
        (drop (call $add64 (i32.const 3) (i64.const 8) (i64.const 1)))
        (call $forward (i32.const 3) (i32.const 0) (local.get $at) (i32.const 4))";
    let module = wat::parse_str(format!("{HEAD} {body} (i32.const 0)))")).unwrap();
    let (arena, grants) = granted(2 << 20, Rights::Write);
    let guard = arena.bytes(4 << 20, 4096).unwrap();
    let bytes = arena.bytes(6 << 20, 2 << 20).unwrap();
    let kept: Vec<u8> = (0..2 << 20).map(|at: u32| (at % 251) as u8).collect();
    bytes.write(0, &kept);
    let (read, rights) = (bytes.clone(), Rights::Read);
    let grants = grants.with(4, Some(Grant { bytes, rights }));
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
    let mut bytes = vec![0; kept.len()];
    read.read(0, &mut bytes);
    assert!(bytes == kept, "what is granted for reading");
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
    assert!(prepare("(module (memory 1))", "run").contains("--import-memory"));
    let table = r#"(module (table 100000 funcref)
        (func (export "run") (param i32 i32) (result i32) (i32.const 0)))"#;
    let code = wasm.prepare(&wat::parse_str(table).unwrap(), &["run".into()]);
    assert!(code.unwrap().instance(&Grants::default()).is_err());
    assert!(wasm.prepare(b"\0asm\x01\0\0\0garbage", &[]).is_err());
}

/// What no unit gives to an instance is refused before it is compiled, also without an engine.
#[test]
fn imports_are_those_of_the_linker() {
    let wasm = Wasm::new().unwrap();
    for (import, says) in [
        (
            r#""samite" "nope" (func)"#,
            "imports samite.nope, which is not",
        ),
        (
            r#""samite" "memory" (func)"#,
            "imports samite.memory, which is not",
        ),
        (
            r#""samite" "me" (global i32)"#,
            "imports samite.me, which is not",
        ),
        (
            r#""wasi" "me" (func (result i32))"#,
            "imports wasi.me, which is not",
        ),
        (
            r#""env" "memory" (memory 1)"#,
            "imports env.memory, which is not",
        ),
        (
            r#""samite" "me" (func)"#,
            "samite.me as () -> (), which is () -> (i32)",
        ),
        (
            r#""samite" "reply" (func (param i32 i64))"#,
            "samite.reply as (i32, i64) -> (), which is (i32, i32) -> ()",
        ),
        (
            r#""samite" "cas64" (func (param i32 i64 i64 i64))"#,
            "samite.cas64 as (i32, i64, i64, i64) -> (), which is (i32, i64, i64, i64) -> (i64)",
        ),
        (r#""samite" "memory" (memory 1 2)"#, "has a maximum"),
    ] {
        let text = format!(
            r#"(module (import {import})
                (func (export "run") (param i32 i32) (result i32) (i32.const 0)))"#
        );
        let code = wat::parse_str(text).unwrap();
        let refused = entries(&code).unwrap_err();
        assert!(refused.to_string().contains(says), "{import}: {refused}");
        let prepared = wasm.prepare(&code, &["run".into()]).map(|_| ());
        assert_eq!(prepared, Err(refused));
    }
}

/// Returns why a module is refused before it is compiled.
fn refusal(text: &str) -> String {
    let code = wat::parse_str(text).unwrap();
    assert!(code.len() as u64 <= CODE_MAX, "{} bytes", code.len());
    entries(&code).unwrap_err().to_string()
}

/// The compiler has a table of variables by blocks for each function, and gives each variable that
/// is set in a block a value behind it.
#[test]
fn functions_with_too_many_variables_and_blocks_are_refused() {
    let refused = |text: &str| {
        let why = refusal(text);
        let known = [
            "variables and branches",
            "a function is too large",
            "branches for",
        ];
        assert!(known.iter().any(|known| why.contains(known)), "{why}");
    };
    let (locals, loops) = (" i32".repeat(20_000), "(loop)".repeat(2_000));
    refused(&format!("(module (func (local{locals}) {loops}))"));
    // The results of a block are variables, too.
    let blocks = "(drop (block (result i32) (i32.const 0)))".repeat(33_500);
    refused(&format!("(module (func {blocks}))"));
    let (eight, zeroes) = (" i32".repeat(8), "i32.const 0 ".repeat(8));
    let (blocks, drops) = ("block (type 0) end ".repeat(2_000), "drop ".repeat(8));
    let head = format!("(type (func (param{eight}) (result{eight})))");
    refused(&format!("(module {head} (func {zeroes} {blocks} {drops}))"));
    // And so are the parameters of a loop.
    let many = " i32".repeat(100);
    let (zeroes, drops) = ("i32.const 0 ".repeat(100), "drop ".repeat(100));
    let loops = format!("{zeroes} loop (type 0) {drops} end ").repeat(100);
    refused(&format!(
        "(module (type (func (param{many}))) (func {loops}))"
    ));
    // Variables that are set in blocks which are in each other.
    let sets = "(local.set 0 (i32.const 0))".repeat(500);
    let (blocks, ends) = (
        "block (br_if 0 (i32.const 0)) ".repeat(250),
        "end ".repeat(250),
    );
    let locals = " i32".repeat(500);
    refused(&format!(
        "(module (func (local{locals}) {blocks} {sets} {ends}))"
    ));
    let (loops, ends) = ("loop ".repeat(33), "end ".repeat(33));
    let why = refusal(&format!("(module (func {loops} {ends}))"));
    assert!(why.contains("loops are nested more than 32 deep"), "{why}");
    // Blocks alone.
    refused(&format!("(module (func {}))", "block end ".repeat(30_000)));
    // Values that wait on the stack live through all blocks.
    let waiting = "(i32.load (i32.const 0))".repeat(20_000);
    let (blocks, drops) = (
        "(block (br_if 0 (i32.const 0)))".repeat(5_000),
        "drop ".repeat(20_000),
    );
    let memory = r#"(import "samite" "memory" (memory 1))"#;
    refused(&format!(
        "(module {memory} (func {waiting} {blocks} {drops}))"
    ));
}

#[test]
fn functions_of_many_parameters_cost_what_they_take_the_compiler() {
    let why = refusal(&format!(
        "(module (type (func (param{}))))",
        " i32".repeat(1000)
    ));
    assert!(why.contains("more than 128 parameters"), "{why}");
    let why = refusal(&format!(
        "(module (type (func (result{}))))",
        " i32".repeat(9)
    ));
    assert!(why.contains("8 results"), "{why}");
    // Each call of two bytes takes and returns eight values.
    let (eight, zeroes) = (" i32".repeat(8), "i32.const 0 ".repeat(8));
    let head = format!("(type (func (param{eight}) (result{eight})))");
    let call = |calls| format!("(func (type 0) {zeroes} {})", "call 0 ".repeat(calls));
    let why = refusal(&format!("(module {head} {})", call(40_000)));
    assert!(why.contains("a function is too large"), "{why}");
    let why = refusal(&format!("(module {head} {})", call(20_000).repeat(12)));
    assert!(why.contains("it is too large for the compiler"), "{why}");
    // Each target of a table of branches.
    let targets = "0 ".repeat(200_000);
    let table = format!("block (type 0) {zeroes} i32.const 0 br_table {targets} end");
    let head = format!("(type (func (result{eight})))");
    let why = refusal(&format!("(module {head} (func (type 0) {table}))"));
    assert!(why.contains("too large"), "{why}");
}

#[test]
fn sections_with_too_many_items_are_refused() {
    let function = r#"(func $f (export "run") (param i32 i32) (result i32) (i32.const 0))"#;
    for (items, of) in [
        ("(func)".repeat(4096), "functions"),
        ("(global i32 (i32.const 0))".repeat(4097), "globals"),
        (
            format!(
                "(table 1 funcref) (elem (i32.const 0) {})",
                "$f ".repeat(4097)
            ),
            "elements",
        ),
        (r#"(data "")"#.repeat(4097), "data segments"),
        (
            (0..4097)
                .map(|at| format!(r#"(export "e{at}" (func $f))"#))
                .collect(),
            "exports",
        ),
        (
            r#"(import "samite" "me" (func (result i32)))"#.repeat(4097),
            "imports",
        ),
        // Each is a type of its own.
        (
            (0..4097_u32)
                .map(|at| {
                    let of = (0..13).map(|bit| ["i32 ", "i64 "][(at >> bit & 1) as usize]);
                    format!("(type (func (param {})))", of.collect::<String>())
                })
                .collect(),
            "types",
        ),
    ] {
        let (before, after) = match of {
            "imports" => (items, String::new()),
            _ => (String::new(), items),
        };
        let why = refusal(&format!("(module {before} {function} {after})"));
        assert!(why.contains(&format!("4096 {of}")), "{of}: {why}");
    }
}

/// Operators that no compiler of kernels emits, and whose code would have to be counted.
#[test]
fn operators_that_are_not_offered_are_refused() {
    let head = "(type $t (func)) (table $a 1 funcref) (table $b 1 funcref) (elem $e func $f)
        (elem declare func $f) (func $f)";
    for body in [
        "(drop (table.get $a (i32.const 0)))",
        "(table.set $a (i32.const 0) (ref.null func))",
        "(drop (table.size $a))",
        "(drop (table.grow $a (ref.null func) (i32.const 1)))",
        "(table.fill $a (i32.const 0) (ref.null func) (i32.const 1))",
        "(table.copy $a $b (i32.const 0) (i32.const 0) (i32.const 1))",
        "(table.init $a $e (i32.const 0) (i32.const 0) (i32.const 1))",
        "(elem.drop $e)",
        "(drop (ref.func $f))",
        "(drop (ref.is_null (ref.null func)))",
        "(return_call $f)",
        "(return_call_indirect (type $t) (i32.const 0))",
        "(call_ref $t (ref.func $f))",
        "(return_call_ref $t (ref.func $f))",
        "(block (drop (br_on_null 0 (ref.func $f))))",
        "(drop (block (result (ref func)) (br_on_non_null 0 (ref.null func)) (unreachable)))",
        "(block (try_table (catch_all 0)))",
        "(drop (ref.i31 (i32.const 0)))",
    ] {
        refusal(&format!("(module {head} (func {body}))"));
    }
    let (locals, sets) = (
        " i32".repeat(40_000),
        "(local.set 0 (i32.const 0))".repeat(1000),
    );
    let gets = "(drop (table.get 0 (i32.const 0)))".repeat(100_000);
    let why = refusal(&format!(
        "(module (table 1 funcref) (func (local{locals}) {gets} {sets}))"
    ));
    assert!(why.contains("TableGet is not offered"), "{why}");
    // What compilers do emit.
    let body = "(call_indirect (type $t) (i32.const 0))
        (memory.init $d (i32.const 0) (i32.const 0) (i32.const 1)) (data.drop $d)
        (memory.copy (i32.const 0) (i32.const 1) (i32.const 1))
        (memory.fill (i32.const 0) (i32.const 1) (i32.const 1))
        (drop (i32.extend8_s (i32.trunc_sat_f32_s (f32.const 1))))
        (drop (i32x4.add (v128.const i32x4 1 2 3 4) (i32x4.splat (i32.const 1))))
        (drop (i64.atomic.rmw.add (i32.const 8) (i64.const 1)))
        (drop (memory.grow (i32.const 0)))
        (block (result i32 i64) (i32.const 0) (i64.const 0)) (drop) (drop)";
    let code = format!(
        r#"(module (import "samite" "memory" (memory 1)) (type $t (func)) (func $f)
        (table 1 funcref) (elem (i32.const 0) $f) (data $d "a")
        (func (export "run") (param i32 i32) (result i32) {body} (i32.const 0)))"#
    );
    let code = wat::parse_str(code).unwrap();
    let code = Wasm::new().unwrap().prepare(&code, &["run".into()]);
    let code = code.unwrap();
    let mut instance = code.instance(&Grants::default()).unwrap();
    let mut context = Context::new(0, 1, Grants::default());
    context.begin(patient(), 0, 0);
    assert_eq!(instance.call(0, Box::new(context), b"").1, Ok(()));
}

/// A function without loops and calls of its own does not look at the clock.
#[test]
fn copies_by_the_host_take_the_time_of_the_call() {
    let (_arena, grants) = granted(2 << 20, Rights::Write);
    let copy_in = r#"(import "samite" "copy_in" (func $copy (param i32 i64 i32 i32)))"#;
    let copy_out = copy_in.replace("copy_in", "copy_out");
    let copies = "(call $copy (i32.const 3) (i64.const 0) (i32.const 0) (i32.const 65536))";
    let copies = copies.repeat(30_000);
    for import in [copy_in, &copy_out] {
        let code = format!(
            r#"(module (import "samite" "memory" (memory 1)) {import}
            (func (export "run") (param i32 i32) (result i32) {copies} (i32.const 0)))"#
        );
        let code = wat::parse_str(code).unwrap();
        let code = Wasm::new().unwrap().prepare(&code, &["run".into()]);
        let code = code.unwrap();
        let mut instance = code.instance(&grants).unwrap();
        let mut context = Context::new(0, 1, grants.clone());
        let run = Duration::from_millis(1);
        let limits = Limits { run, ..patient() };
        context.begin(limits, 0, 0);
        assert_eq!(instance.call(0, Box::new(context), b"").1, Err(Trap::Time));
    }
}

#[test]
fn a_thread_with_little_stack_runs_no_kernels() {
    const LITTLE: &str = "256 KiB of stack";
    let mut instance = instance("", &Grants::default());
    let code = wat::parse_str(format!("{HEAD} (i32.const 0)))")).unwrap();
    let code = Wasm::new()
        .unwrap()
        .prepare(&code, &["run".into()])
        .unwrap();
    let mut call = move |context: Box<Context>| instance.call(0, context, b"");
    let mut context = Box::new(Context::new(0, 1, Grants::default()));
    context.begin(patient(), 0, 0);
    std::thread::scope(|scope| {
        let little = std::thread::Builder::new().stack_size(128 << 10);
        let refused = || {
            let refused = code.instance(&Grants::default()).map(|_| ()).unwrap_err();
            assert!(refused.to_string().contains(LITTLE), "{refused}");
            let (context, ended) = call(context);
            let refused = ended.unwrap_err();
            assert!(refused.to_string().contains(LITTLE), "{refused}");
            (context, call)
        };
        let ran = little.spawn_scoped(scope, refused).unwrap().join();
        let (context, mut call) = ran.unwrap();
        let enough = std::thread::Builder::new().stack_size(1 << 20);
        let ran = enough.spawn_scoped(scope, move || call(context).1).unwrap();
        assert_eq!(ran.join().unwrap(), Ok(()));
    });
}

#[test]
fn without_a_clock_no_kernel_runs_until_there_is_one() {
    use std::sync::atomic::Ordering::Relaxed;
    let code = wat::parse_str(format!("{HEAD} (loop (br 0)) (i32.const 0)))")).unwrap();
    let wasm = Wasm::new().unwrap();
    let code = wasm.prepare(&code, &["run".into()]).unwrap();
    wasm.ticker.has_no_threads.store(true, Relaxed);
    let mut instance = code.instance(&Grants::default()).unwrap(); // It runs nothing.
    let mut context = Box::new(Context::new(0, 1, Grants::default()));
    let run = Duration::from_millis(2);
    for has_no_threads in [true, true, false] {
        wasm.ticker.has_no_threads.store(has_no_threads, Relaxed);
        context.begin(Limits { run, ..patient() }, 0, 0);
        let (back, ended) = instance.call(0, context, b"");
        context = back;
        match has_no_threads {
            true => {
                let refused = ended.unwrap_err().to_string();
                assert!(refused.contains("no thread"), "{refused}");
            }
            false => assert_eq!(ended, Err(Trap::Time)),
        }
    }
}

/// An instance that is warm does what others do: its pages are mapped, and keep what they had.
#[test]
fn a_warm_instance_has_its_data() {
    let (_arena, grants) = granted(2 << 20, Rights::Read);
    let body = "(i64.store (local.get $at) (i64.add (i64.load (local.get $at))
        (i64.load offset=8 (call $base (i32.const 3)))))
        (call $reply (local.get $at) (i32.const 8))";
    let mut instance = instance(body, &grants);
    instance.warm_up();
    let mut context = Context::new(0, 1, grants);
    context.begin(patient(), 0, 8);
    let (context, ended) = instance.call(0, Box::new(context), &7_u64.to_le_bytes());
    assert_eq!(ended, Ok(()));
    assert_eq!(context.replied().unwrap(), 49_u64.to_le_bytes());
}

/// A fork has no threads of its parent, so nothing would stop a kernel there.
#[test]
fn a_fork_runs_no_kernel_with_an_engine_of_its_parent() {
    let code = wat::parse_str(format!("{HEAD} (i32.const 0)))")).unwrap();
    let code = Wasm::new()
        .unwrap()
        .prepare(&code, &["run".into()])
        .unwrap();
    let mut instance = code.instance(&Grants::default()).unwrap();
    let mut context = Context::new(0, 1, Grants::default());
    context.begin(patient(), 0, 0);
    let (context, ended) = instance.call(0, Box::new(context), b"");
    assert_eq!(ended, Ok(()));
    let child = match fork::fork().unwrap() {
        fork::Fork::Child => {
            let new = code.instance(&Grants::default()).map(|_| ());
            let (_, old) = instance.call(0, context, b"");
            let is_fork = |ended: Result<(), Trap>| {
                ended.is_err_and(|trap| trap.to_string().contains("is a fork"))
            };
            std::process::exit(i32::from(!is_fork(new) || !is_fork(old)));
        }
        fork::Fork::Parent(child) => rustix::process::Pid::from_raw(child),
    };
    let ended = rustix::process::waitpid(child, rustix::process::WaitOptions::empty()).unwrap();
    let status = ended.and_then(|(_, status)| status.exit_status());
    assert_eq!(status, Some(0));
}
