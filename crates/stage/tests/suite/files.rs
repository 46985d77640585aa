//! The method `file` in a folder that an older run has used.

#![allow(
    clippy::result_large_err,
    reason = "errors name boxes; they are rare, and never on the way of a byte"
)]

use crate::staged::{Play, is_right, next, rows, stage};
use ndarray::Array2;
use samite_fabric::{Fabric, Mask};
use samite_stage::file::{Content, StepFile};
use samite_stage::protocol::{Block, Fault, Layout, Variable};
use samite_stage::space::Dims;
use samite_stage::{Dtype, Error, Method, Region, Settings, Stage};
use samite_testkit::{Outcome, Who, check, of_first_node, pause, same};
use std::path::{Path, PathBuf};
use std::time::Duration;

const SHAPE: [u64; 2] = [8, 20];
const STEPS: u64 = 4;

/// For what must not come.
const SHORT: Duration = Duration::from_millis(50);
const LONG: Duration = Duration::from_secs(30);

fn folder(domain: &str) -> PathBuf {
    std::env::temp_dir().join(format!("samite-{domain}"))
}

/// What three ranks of another run have written, and ended in order: values that are wrong now.
fn old_run(folder: &Path) -> Outcome {
    for rank in 0..3_u32 {
        let whole = Region::whole(&SHAPE)?;
        let blocks = match rank {
            0 => vec![Block {
                region: whole,
                slot: 0,
            }],
            _ => Vec::new(),
        };
        let layout = Layout {
            variables: vec![Variable {
                name: "u".into(),
                dtype: Dtype::F64,
                shape: Dims::from_slice(&SHAPE),
                attributes: Vec::new(),
                blocks,
            }],
        };
        let mut file = StepFile::begin(folder, "field", 7, rank, 3)?;
        for step in 0..STEPS {
            let values = rows(step + 100, 0..8, 20);
            let bytes: &[u8] = bytemuck::cast_slice(values.as_slice().unwrap_or_default());
            let blocks = [bytes];
            let content = Content {
                layout: &layout,
                blocks: &blocks[..layout.blocks()],
                attributes: &[],
            };
            file.append(step, content)?;
        }
        file.finish()?;
    }
    Ok(())
}

fn write(stage: &Stage, rank: u32) -> Outcome {
    let beyond = stage.write("field").as_rank("solver", rank + 2, 2).open();
    check!(matches!(
        beyond.map(drop),
        Err(Error::Fault(Fault::RankBeyond { size: 2, .. }))
    ));
    let mut field = stage.write("field").as_rank("solver", rank, 2).open()?;
    same!(field.next_step(), 0);
    if rank == 1 {
        let again = stage.write("field").as_rank("solver", rank, 2).open();
        let said = again.map(drop).map_err(|error| error.to_string());
        check!(
            matches!(&said, Err(why) if why.contains("rank 1") && why.contains("rank-1.samite"))
        );
    }
    let from = 4 * u64::from(rank);
    for number in 0..STEPS {
        let mut step = field.step()?;
        step.put(
            "u",
            SHAPE,
            [from, 0],
            rows(number, from..from + 4, 20).view(),
        )?;
        step.commit()?;
    }
    Ok(field.close()?)
}

fn read(stage: &Stage, fabric: &Fabric) -> Outcome {
    let open = || stage.read("field").as_rank("analysis", 0, 1).open();
    // The old files are there, and nobody of this run.
    fabric.set_deadline(SHORT);
    let early = open().map(drop);
    check!(matches!(early, Err(Error::OtherRun { .. })), "{early:?}");
    fabric.set_deadline(LONG);
    pause("none");
    // Rank 0 has written all of its steps, and what rank 1 has is old.
    let mut reader = open()?;
    fabric.set_deadline(SHORT);
    let early = reader.next_step().map(drop);
    let is_behind = matches!(
        early,
        Err(Error::RankBehind {
            rank: 1,
            ranks: 2,
            written: None,
            committed: 0,
            ..
        })
    );
    check!(is_behind, "{early:?}");
    fabric.set_deadline(LONG);
    pause("half");
    for number in 0..STEPS {
        let step = next(&mut reader)?;
        same!((step.number(), step.writers()), (number, 2));
        let all: Array2<f64> = step.get("u", ..)?;
        check!(is_right(number, (0, 0), all.view()), "{all}");
    }
    check!(reader.next_step()?.is_none());
    Ok(())
}

#[test]
fn a_second_run_has_nothing_of_the_first() {
    let play = Play::of(3, Mask::default());
    let body = |fabric: &Fabric, me: u32| {
        let folder = folder(of_first_node(fabric.domain().unwrap_or_default()));
        if me == 0 {
            old_run(&folder.join("field"))?;
        }
        pause("begin");
        let settings = Settings {
            folder,
            ..Settings::of(Method::File)
        };
        let stage = stage(fabric, settings)?;
        match me {
            2 => read(&stage, fabric),
            rank => write(&stage, rank),
        }
    };
    play.run(
        "files::a_second_run_has_nothing_of_the_first",
        body,
        |cluster| {
            (0..3).for_each(|me| cluster.wait_point(play.actor(me), "begin"));
            cluster.release(play.actor(2));
            cluster.wait_point(play.actor(2), "none");
            cluster.release(play.actor(0));
            cluster.wait_gone(play.actor(0));
            cluster.release(play.actor(2));
            cluster.wait_point(play.actor(2), "half");
            cluster.release(play.actor(1));
            cluster.wait_gone(play.actor(1));
            cluster.release(play.actor(2));
            cluster.all_end();
            let _ = std::fs::remove_dir_all(self::folder(cluster.domain()));
        },
    );
}

/// A rank that cannot learn its run opens no file: the other ranks would not find it.
#[test]
fn a_rank_without_a_coordinator_opens_no_file() {
    let play = Play::of(1, Mask::default());
    let body = |fabric: &Fabric, _| {
        let folder = folder(of_first_node(fabric.domain().unwrap_or_default()));
        let settings = Settings {
            folder: folder.clone(),
            ..Settings::of(Method::File)
        };
        let stage = stage(fabric, settings)?;
        pause("joined");
        let opened = stage.write("field").as_rank("solver", 0, 1).open();
        let opened = opened.map(drop);
        check!(matches!(opened, Err(Error::Fabric(_))), "{opened:?}");
        check!(!folder.join("field").exists(), "it has begun a file");
        Ok(())
    };
    let coordinator = Who::Unit(0);
    play.run(
        "files::a_rank_without_a_coordinator_opens_no_file",
        body,
        |cluster| {
            cluster.wait_point(play.actor(0), "joined");
            cluster.kill(coordinator);
            cluster.wait_gone(coordinator);
            cluster.release(play.actor(0));
        },
    );
}
