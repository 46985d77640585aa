//! `docs/mobile.md`: its fragments of programs compile. Each of them is in a function here that has
//! what it needs, word for word but for spaces.
#![allow(
    dead_code,
    clippy::needless_borrow,
    unreachable_pub,
    unused_imports,
    unused_variables,
    reason = "the functions are compiled, and not called"
)]

use samite::dsm::Chunk;
use samite::mobile::operation::{Below, Graph, Lists, Shards, Tree, Way};
use samite::mobile::{Capsule, Mobile, Registered, Rights, mobile};
use samite::pgas::{Pgas, Team};
use samite::stage::StepReader;
use samite::{Fabric, Segment, SegmentKey};

type Outcome = Result<(), Box<dyn std::error::Error>>;

const PAGE: &str = include_str!("../../../../docs/mobile.md");
const THIS: &str = include_str!("guide.rs");

/// Returns the blocks of Rust, without the whole program at the beginning.
fn fragments() -> Vec<&'static str> {
    let blocks = PAGE.split("\n```rust\n").skip(1);
    let blocks = blocks.map(|block| block.split("\n```\n").next().unwrap_or_default());
    blocks
        .filter(|block| !block.contains("fn main()"))
        .collect()
}

#[test]
fn all_fragments_are_compiled() {
    let packed = |text: &str| text.split_whitespace().collect::<String>();
    let this = packed(THIS);
    let fragments = fragments();
    assert_eq!(fragments.len(), 15);
    for fragment in fragments {
        assert!(
            this.contains(&packed(fragment)),
            "no function has this:\n{fragment}"
        );
    }
}

fn a_function_of_the_program(mobile: &Mobile) -> Outcome {
    use samite::mobile::{Capsule, Function};

    // At the units that are called. The first closure is entry 0, that of `and` is entry 1.
    let functions = Function::new(|context, payload| {
        let before = context.fetch_add(0, 8, payload.len() as u64)?; // word at byte 8 of grant 0
        context.reply(&before.to_le_bytes())
    })
    .and(|context, _| context.reply(&context.me().to_le_bytes()));
    mobile.define("stats", functions);

    // At the caller.
    let stats = mobile.register(Capsule::of_function("stats", ["count", "where"])?)?;
    let reply = mobile.call(1, &stats, "count", b"abc")?.wait()?;
    Ok(())
}

fn a_kernel_in_rust(mobile: &Mobile) -> Outcome {
    use samite::mobile::{Context, Trap, mobile};

    /// Adds up the words of grant 0.
    #[mobile]
    fn sum(context: &mut Context, _: &[u8]) -> Result<(), Trap> {
        let mut total = 0_u64;
        for at in (0..context.len(0)?).step_by(8) {
            total = total.wrapping_add(context.load(0, at)?);
        }
        context.reply(&total.to_le_bytes())
    }

    // At the caller.
    let code = mobile.register(sum::capsule()?)?;
    let reply = mobile.call(1, &code, "sum", &[])?.wait()?;

    // At a unit that is to run the function itself.
    sum::define(&mobile);
    Ok(())
}

#[mobile]
mod tree {
    use samite::mobile::{Context, Trap};

    const LEAF: u64 = 1 << 63;

    /// Looks a key up in the part of each unit: entry 0 goes on by itself.
    pub fn find(context: &mut Context, payload: &[u8]) -> Result<(), Trap> {
        let [key, mut at] = words(payload)?;
        while at & LEAF == 0 {
            let unit = (at >> 48) as u32;
            if unit != context.me() {
                return context.forward(unit, 0, [key, at].map(u64::to_le_bytes).as_flattened());
            }
            let node = at & 0xffff_ffff_ffff;
            let is_right = key >= context.load(0, node)?;
            at = context.load(0, node + 8 + 8 * u64::from(is_right))?;
        }
        context.reply(&(at & !LEAF).to_le_bytes())
    }

    fn words(payload: &[u8]) -> Result<[u64; 2], Trap> {
        match payload.as_chunks::<8>() {
            (&[key, at], []) => Ok([key, at].map(u64::from_le_bytes)),
            _ => Err(Trap::failed(1, "the payload is a key and an address")),
        }
    }
}

fn a_grant(fabric: &Fabric, mobile: &Mobile, numbers: &[f64]) -> Outcome {
    use samite::mobile::Rights;

    let segment = fabric.allocate(4 << 20)?;
    segment.bytes().write_f64s(0, &numbers); // from byte 0 on; `write` takes bytes
    mobile.grant(0, segment.bytes(), Rights::Read);
    Ok(())
}

fn limits(mobile: &Mobile, code: &Registered, payload: &[u8]) -> Outcome {
    use samite::mobile::Limits;
    use std::time::Duration;

    let limits = Limits {
        run: Duration::from_millis(50),
        hops: 16,
        grants: 1 << 0, // only grant 0
        may_spawn: false,
        may_define: false,
        ..Limits::default()
    };
    let reply = mobile
        .call_within(1, &code, "run", &payload, limits)?
        .wait()?;
    Ok(())
}

fn a_capsule() -> Outcome {
    use samite::mobile::{Capsule, Processor};

    let capsule = Capsule::builder(["sum"]) //              entry 0
        .wasm(std::fs::read("sum.wasm")?)
        .bitcode(Processor::X86, 22, std::fs::read("sum.x86.bc")?) // 22: the LLVM that made it
        .elf(Processor::X86, std::fs::read("sum.so")?)
        .function("sum") //                                 a unit that has it runs its own
        .build()?;
    Ok(())
}

fn a_policy(mobile: &Mobile, public_key: [u8; 32]) -> Outcome {
    use samite::mobile::{Policy, Trust};

    mobile.set_policy(Policy {
        trust: Trust::ListedNative,
        keys: vec![public_key], // 32 bytes; `samite capsule key` prints them in hexadecimal
        hashes: vec![],
        ..Policy::default()
    });
    Ok(())
}

fn operations(
    mobile: &Mobile,
    segment: &Segment,
    words: u64,
    keys: &[SegmentKey],
    start: u64,
) -> Outcome {
    use samite::mobile::operation::{Gather, Lists, Shards, Table, Tree, Way};

    // At each unit that has words: grant them, and make the functions known.
    mobile.grant(0, segment.bytes(), Rights::Read);
    Table::serve(&mobile); // likewise Gather, Lists, Tree, Graph, Below

    // At the client: the units from 1 on, with the keys of their segments.
    let shards = Shards::new(&mobile, 1, 0, words, &keys)?;
    let table = Table::new(&shards)?;
    let end = table.chase(Way::Moved, 1000, start)?; // or Way::Gets, Way::Function
    let end = table.chase_auto(1000, start)?;
    Ok(())
}

fn lists(shards: &Shards, head: u64, key: u64) -> Outcome {
    let lists = Lists::new(&shards)?;
    let value = lists.find(Way::Moved, head, key)?; // an Option
    Ok(())
}

fn trees(shards: &Shards, pairs: &[(u64, u64)], key: u64) -> Outcome {
    let tree = Tree::build(&shards, 0, 16, &pairs)?; // from word 0 of each unit on, fan-out 16
    let value = tree.get(Way::Moved, key)?;
    let next = tree.lower_bound_auto(key)?; // the pair with the least key that is not below this one
    let again = Tree::open(&shards, tree.root())?; // at another unit, which got the root in a message
    Ok(())
}

fn searches(
    mobile: &Mobile,
    link_words: u64,
    link_keys: &[SegmentKey],
    mark_words: u64,
    mark_keys: &[SegmentKey],
    vertices: u64,
    source: u64,
) -> Outcome {
    let links = Shards::new(&mobile, 1, 0, link_words, &link_keys)?;
    let marks = Shards::new(&mobile, 1, 1, mark_words, &mark_keys)?;
    let graph = Graph::new(&links, &marks, vertices)?;
    let reached = graph.bfs(Way::Moved, source)?; // the number of vertices, and of their levels
    let levels = graph.levels(&reached)?; //          of each vertex, None if it was not reached
    Ok(())
}

fn sums(shards: &Shards) -> Outcome {
    let below = Below::new(&shards)?;
    let found = below.find(Way::Moved, 0..shards.len(), 1000)?;
    println!("{} words, sum {}", found.count, found.sum);
    Ok(())
}

fn a_global_pointer(mobile: &Mobile, team: &Team, rank: u32, code: &Registered) -> Outcome {
    use samite::GrantedSegment;
    use samite::mobile::Rights;

    let cells = team.allocate::<u64>(1000)?;
    let granted = GrantedSegment::new(&mobile, 3, &cells, Rights::Write)?; // collective
    let cell = cells.pointer(rank, 17)?;
    let reply = granted.call_at(cell, &code, "run", &[])?.wait()?;
    Ok(())
}

fn staged_data(mobile: &Mobile, step: &StepReader, chunk: &Chunk<f64>) -> Outcome {
    use samite::Map;

    let code = mobile.register(Capsule::decode(&std::fs::read("above.capsule")?)?)?;
    let above = Map::new(&mobile, &code, "above")
        .argument(&0.5_f64.to_le_bytes())
        .at(&[1, 2]); // units that run it; each block goes to those on its node

    for part in above.run(&step, "temperature", [0..512, 0..512])? {
        // a step of a stream
        println!("{}: {} bytes", part.region, part.bytes.len());
    }
    for part in above.run_at_home(&chunk)? {
        // a chunk, under a guard to read it
        println!("elements {}: {} bytes", part.region, part.bytes.len());
    }
    Ok(())
}

fn a_reduction(
    mobile: &Mobile,
    pgas: &Pgas,
    capsule: Option<Capsule>,
    own: Vec<f64>,
    mut result: Vec<f64>,
) -> Outcome {
    use samite::MovedOperator;

    let operator =
        MovedOperator::<f64>::new(&mobile, pgas.world(), 0, capsule.as_ref(), "combine")?;
    operator.all_reduce(&own, &mut result)?;
    Ok(())
}
