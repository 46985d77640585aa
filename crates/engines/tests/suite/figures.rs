//! Figures of the engines, printed by an ignored test. Best run with `--release`:
//! `cargo test --release -p samite-engines --test suite -- --ignored --nocapture figures`.

use crate::build::{Built, bitcode, compile_text, elf, kernels};
use samite_engines::bitcode::Bitcode;
use samite_engines::clang;
use samite_engines::elf::Elf;
use samite_engines::wasm::Wasm;
use samite_engines::{
    Code, Context, Engine, Function, Grant, Grants, Instance, Kind, Limits, Rights,
};
use samite_mem::Arena;
use std::time::{Duration, Instant};

const BYTES: u64 = 64 << 20;

fn milliseconds(of: Duration) -> f64 {
    of.as_secs_f64() * 1e3
}

/// Returns the shortest of some durations.
fn shortest(rounds: u32, mut run: impl FnMut()) -> Duration {
    let round = |_| {
        let start = Instant::now();
        run();
        start.elapsed()
    };
    (0..rounds).map(round).min().unwrap_or_default()
}

struct Bench {
    name: String,
    instance: Box<dyn Instance>,
    context: Option<Box<Context>>,
}

impl Bench {
    fn new(name: String, code: &dyn Code, grants: &Grants) -> Bench {
        let instance = code.instance(grants).unwrap();
        let context = Some(Box::new(Context::new(0, 1, grants.clone())));
        Bench {
            name,
            instance,
            context,
        }
    }

    /// Prepares the context, as before each call.
    fn begin(&mut self) -> Box<Context> {
        let limits = Limits {
            run: Duration::from_secs(20),
            time: Duration::from_secs(20),
            ..Limits::default()
        };
        let mut context = self.context.take().unwrap();
        context.begin(limits, 0, 4096);
        context
    }

    fn call(&mut self, entry: u8, payload: &[u8]) {
        let context = self.begin();
        let (context, ended) = self.instance.call(entry, context, payload);
        assert_eq!(ended, Ok(()), "{}", self.name);
        self.context = Some(context);
    }

    fn print(&mut self) {
        let calls = 200_000;
        let begun = shortest(20, || {
            (0..calls).for_each(|_| self.context = Some(self.begin()));
        });
        // Without the time for the context.
        let mut nanoseconds = |entry: u8, payload: &[u8]| {
            let time = shortest(20, || (0..calls).for_each(|_| self.call(entry, payload)));
            time.saturating_sub(begun).as_secs_f64() * 1e9 / calls as f64
        };
        let nothing = nanoseconds(0, &[7; 8]);
        let echo = nanoseconds(1, &[7; 8]);
        let filter = shortest(5, || self.call(2, &[0; 8]));
        println!(
            "{:<10} call {nothing:6.1} ns   echo of 8 bytes {echo:6.1} ns   filter + sum of 64 MiB \
             {:6.2} ms",
            self.name,
            milliseconds(filter)
        );
    }
}

/// The same entries as functions of the program.
fn functions() -> Function {
    let echo = |context: &mut Context, payload: &[u8]| context.reply(payload);
    let filter = |context: &mut Context, payload: &[u8]| {
        let above = i32::from_le_bytes(payload[..4].try_into().unwrap());
        let (mut sum, mut found) = (0_i32, 0_i32);
        let mut part = vec![0; 64 << 10];
        for offset in (0..context.len(3)?).step_by(part.len()) {
            context.read(3, offset, &mut part)?;
            for number in part.chunks_exact(4) {
                let number = i32::from_le_bytes(number.try_into().unwrap());
                sum = sum.wrapping_add(if number > above { number } else { 0 });
                found += (number > above) as i32;
            }
        }
        context.reply(&[sum.to_le_bytes(), found.to_le_bytes()].concat())
    };
    Function::new(|_, _| Ok(())).and(echo).and(filter)
}

fn engines(built: &Built) -> Vec<(Box<dyn Engine>, &[u8])> {
    vec![
        (Box::new(Wasm::new().unwrap()), &built.wasm),
        (Box::new(Bitcode::new(None).unwrap()), &built.bitcode),
        (Box::new(Elf), &built.elf),
    ]
}

/// Prints how long it takes until a kernel that only replies is ready, the first one and others.
fn small(built: &Built) {
    let source = "#include \"samite_kernel.h\"
        SAMITE_KERNEL int32_t echo(uint8_t *payload, uint32_t len) {
            samite_reply(payload, len);
            return 0;
        }";
    let codes = [clang::wasm(), bitcode(), elf()].map(|flags| compile_text(source, &flags));
    for ((engine, _), code) in engines(built).iter().zip(&codes) {
        let entries = ["echo".to_owned()];
        let start = Instant::now();
        drop(engine.prepare(code, &entries).unwrap());
        let first = milliseconds(start.elapsed());
        let later = shortest(20, || drop(engine.prepare(code, &entries).unwrap()));
        println!(
            "{:<10} echo alone: {:5} bytes   prepared in {first:6.2} ms, later {:6.2} ms",
            engine.kind().name(),
            code.len(),
            milliseconds(later)
        );
    }
}

#[test]
#[ignore = "prints figures"]
fn figures() {
    // Before anything else has loaded it.
    let start = Instant::now();
    let llvm = Bitcode::new(None);
    println!("LLVM loaded in {:.1} ms", milliseconds(start.elapsed()));
    drop(llvm);
    let Some(built) = kernels("figures::figures") else {
        return;
    };
    let arena = Arena::create(BYTES).unwrap();
    let bytes = arena.bytes(0, BYTES).unwrap();
    let mut random = samite_testkit::fuzz::Rng::with_seed(1);
    let numbers: Vec<u8> = (0..BYTES / 8)
        .flat_map(|_| random.u64(..).to_le_bytes())
        .collect();
    bytes.write(0, &numbers);
    let rights = Rights::Read;
    let grants = Grants::default().with(3, Some(Grant { bytes, rights }));
    small(built);
    let entries = ["nothing", "echo", "filter"].map(str::to_owned);

    let mut all = vec![Bench::new(
        Kind::Function.to_string(),
        &functions(),
        &grants,
    )];
    for (engine, bytes) in engines(built) {
        let start = Instant::now();
        let code = engine.prepare(bytes, &entries).unwrap();
        let first = milliseconds(start.elapsed());
        let later = shortest(10, || drop(engine.prepare(bytes, &entries).unwrap()));
        let instance = shortest(10, || drop(code.instance(&grants).unwrap()));
        println!(
            "{:<10} {:5} bytes   prepared in {first:6.2} ms, later {:6.2} ms   instance {:6.1} us",
            engine.kind().name(),
            bytes.len(),
            milliseconds(later),
            milliseconds(instance) * 1e3
        );
        all.push(Bench::new(engine.kind().to_string(), &*code, &grants));
    }
    all.iter_mut().for_each(Bench::print);
}
