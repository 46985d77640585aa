//! What modules take the compiler at most.

use super::{CODE_MAX, Wasm, entries};
use crate::Engine;
use std::time::Instant;

/// Prints what the largest modules of each shape that are accepted take the compiler.
#[test]
#[ignore = "prints figures"]
fn figures_of_the_compiler() {
    let head = r#"(import "samite" "memory" (memory 1))
        (import "samite" "me" (func $me (result i32)))
        (type $t (func)) (table 1 funcref)"#;
    let wasm = Wasm::new().unwrap();
    for (name, shape) in shapes() {
        let code =
            |count: usize| wat::parse_str(format!("(module {head} {})", shape(count))).unwrap();
        let fits = |count: usize| {
            let code = code(count);
            code.len() as u64 <= CODE_MAX && entries(&code).is_ok()
        };
        // The most that is accepted, to a sixteenth.
        let mut count = 1;
        while fits(count * 2) && count < 4096 * 1024 {
            count *= 2;
        }
        let mut step = count / 2;
        while step > count / 16 {
            count += if fits(count + step) { step } else { 0 };
            step /= 2;
        }
        let code = code(count);
        let start = Instant::now();
        assert!(entries(&code).is_ok());
        let checked = start.elapsed().as_millis();
        let start = Instant::now();
        let compiled = wasm.prepare(&code, &[]).unwrap();
        let took = start.elapsed().as_millis();
        println!(
            "{name:<12} {count:>7}: {:>7} bytes, checked in {checked:>2} ms, compiled in {took:>5} ms \
             to {:>5} KiB",
            code.len(),
            compiled.bytes() >> 10
        );
    }
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    println!(
        "{}",
        status
            .lines()
            .find(|line| line.starts_with("VmHWM"))
            .unwrap()
    );
}

type Shape = (&'static str, Box<dyn Fn(usize) -> String>);

/// Text that is repeated in one function, or in 16.
fn row(name: &'static str, functions: usize, text: &'static str) -> Shape {
    let end = "(i32.store (i32.const 0) (local.get 0)) (i64.store (i32.const 0) (local.get 1))
        (v128.store (i32.const 0) (local.get 2))";
    let of = move |count: usize| {
        let function = format!("(func (local i32 i64 v128) {} {end})", text.repeat(count));
        function.repeat(functions)
    };
    (name, Box::new(of))
}

fn all(locals: usize, f: impl Fn(usize) -> String) -> String {
    (0..locals).map(f).collect()
}

/// Blocks in each other, and variables that are set inside, used behind.
fn joins(locals: usize, blocks: usize) -> String {
    let set = all(locals, |at| {
        format!("(local.set {at} (i32.load offset={at} (i32.const 0)))")
    });
    let get = all(locals, |at| {
        format!("(i32.store offset={at} (i32.const 0) (local.get {at}))")
    });
    let begins = "block (br_if 0 (i32.load (i32.const 0)))".repeat(blocks);
    let (types, ends) = (" i32".repeat(locals), "end ".repeat(blocks));
    format!("(func (local{types}) {set} {begins} {set} {ends} {get})")
}

/// Loops in each other, which add to variables, one nest after another.
fn nests(locals: usize, loops: usize, nests: usize) -> String {
    let set = all(locals, |at| {
        format!("(local.set {at} (i32.add (local.get {at}) (i32.const 1)))")
    });
    let (begins, ends) = (
        "loop ".repeat(loops),
        "(br_if 0 (local.get 0)) end ".repeat(loops),
    );
    let (types, nest) = (" i32".repeat(locals), format!("{begins} {set} {ends}"));
    format!("(func (local{types}) {})", nest.repeat(nests))
}

fn shapes() -> Vec<Shape> {
    fn shape(name: &'static str, of: impl Fn(usize) -> String + 'static) -> Shape {
        (name, Box::new(of))
    }
    vec![
        row("load", 1, "(local.set 0 (i32.load (local.get 0)))"),
        row("loads", 16, "(local.set 0 (i32.load (local.get 0)))"),
        row(
            "trunc",
            1,
            "(local.set 2 (i32x4.trunc_sat_f64x2_u_zero (local.get 2)))",
        ),
        row(
            "truncs",
            16,
            "(local.set 2 (i32x4.trunc_sat_f64x2_u_zero (local.get 2)))",
        ),
        row(
            "rmw",
            16,
            "(local.set 0 (i32.atomic.rmw8.xor_u (local.get 0) (local.get 0)))",
        ),
        row(
            "fill",
            16,
            "(memory.fill (local.get 0) (local.get 0) (local.get 0))",
        ),
        row(
            "copy",
            16,
            "(memory.copy (local.get 0) (i32.load (i32.const 0)) (i32.const 128))",
        ),
        row("call", 1, "(drop (call $me))"),
        row("calls", 16, "(drop (call $me))"),
        row("indirect", 1, "(call_indirect (type $t) (local.get 0))"),
        row("indirects", 16, "(call_indirect (type $t) (local.get 0))"),
        row("blocks", 16, "(block (br_if 0 (i32.load (local.get 0))))"),
        row("loops", 16, "loop end "),
        shape("joins20", |count| joins(20, count)),
        shape("joins100", |count| joins(100, count)),
        shape("joins500", |count| joins(500, count)),
        shape("joins2000", |count| joins(2000, count)),
        shape("joins100x3", |count| joins(100, count).repeat(3)),
        shape("nests20", |count| nests(20, 32, count)),
        shape("nests100", |count| nests(100, 32, count)),
        shape("nests500", |count| nests(500, 16, count)),
        shape("nests2000", |count| nests(2000, count, 1)),
        shape("nests100x3", |count| nests(100, 32, count).repeat(3)),
        shape("empty", |count| "(func)".repeat(count)),
        shape("exported", |count| {
            all(count, |at| format!("(func (export \"{at}\"))"))
        }),
        shape("wide", |count| {
            let of = format!("(param {})", "i32 ".repeat(128));
            all(count, |at| format!("(func (export \"{at}\") {of})"))
        }),
        shape("types", |count| {
            all(count, |at| {
                let of = |bit: usize| ["i32 ", "i64 "][(bit < 20 && at >> bit & 1 == 1) as usize];
                format!("(type (func (param {})))", all(128, |bit| of(bit).into()))
            })
        }),
        shape("data", |count| r#"(data (i32.const 0) "a")"#.repeat(count)),
        shape("elements", |count| {
            format!("(func $f) (elem (i32.const 0) {})", "$f ".repeat(count))
        }),
    ]
}
