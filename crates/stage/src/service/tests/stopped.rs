//! A live process that does not take its messages.

use super::{next, open_reader};
use crate::client::Client;
use crate::protocol::{Answer, Attribute, Request, Ticket};
use crate::service::{Capacity, Staging};
use crate::{Configuration, Settings, Stage};
use samite_fabric::Fabric;
use samite_testkit::{Outcome, Unit, Who, check, full_name, pause, same, units};
use std::time::Duration;

const STEPS: u64 = 3;
const RANKS: u32 = 2;

/// Ten MiB, different for each step.
fn fact(step: u64) -> Attribute {
    let letters = (0..10 << 20).map(|at: u64| (b'a' + ((at * 7 + step * 5) % 26) as u8) as char);
    Attribute::Text(letters.collect())
}

/// Serves until the others have joined and left.
fn coordinate(unit: &Unit) -> Outcome {
    let agent = samite_fabric::agent::identity();
    let fabric = Fabric::join(&unit.domain, agent, unit.config.clone())?;
    let mut service = Staging::new(&fabric, Capacity::of_memory(64 << 20));
    let mut most = 0;
    service.run(|fabric| {
        let there = fabric.peers().len();
        most = most.max(there);
        there > 1 || most < 3
    })?;
    Ok(())
}

/// Writes the steps while the reader is stopped. The reader is not given up.
fn write(unit: &Unit) -> Outcome {
    let fabric = unit.join()?;
    let stage = Stage::join_with(&fabric, Configuration::of(Settings::default()))?;
    let options = stage.write("field").as_rank("solver", 0, 1);
    let mut field = options.limits(STEPS + 1, u64::MAX).open()?;
    pause("open");
    for number in 0..STEPS {
        let mut step = field.step()?;
        same!(step.number(), number);
        step.attribute("fact", fact(number));
        step.commit()?;
    }
    let overview = stage.overview(Duration::from_secs(20))?;
    same!(overview.figures.streams[0].groups[0].here, RANKS);
    pause("written");
    Ok(field.close()?)
}

/// Requests all steps as two ranks at a time, is stopped, and takes the answers when it continues.
fn read(unit: &Unit) -> Outcome {
    let fabric = unit.join()?;
    let client = Client::new(&fabric)?;
    let mut ranks = Vec::new();
    for rank in 0..RANKS {
        let question = |ticket: Ticket| open_reader(ticket.0, "field", (rank, RANKS));
        let opened = client.request("a reader", question)?;
        check!(matches!(opened, Answer::Reading { .. }), "{opened:?}");
        if let Answer::Reading { reader, .. } = opened {
            ranks.push(reader);
        }
    }
    let mut asked = Vec::new();
    for &reader in &ranks {
        for step in 0..STEPS {
            let call = client.request_later(|ticket| next(ticket.0, reader))?;
            asked.push((step, call));
        }
    }
    // Ordered by step, for all ranks.
    asked.sort_by_key(|(step, _)| *step);
    // When this is answered, the earlier requests have been handled.
    client.request("figures", |ticket| Request::Figures { ticket })?;
    pause("asked");
    for (step, call) in &mut asked {
        let given = client.answer("a step", call)?;
        let Answer::Step(record) = given else {
            check!(false, "{given:?}");
            return Ok(());
        };
        same!(record.step, *step);
        let facts = &record.parts[0].attributes;
        check!(
            facts.len() == 1 && facts[0].1 == fact(*step),
            "of step {step}"
        );
    }
    for reader in ranks {
        client.tell(Request::CloseReader { reader })?;
    }
    Ok(())
}

/// A stopped process is given no more steps than it can take, however many it has requested. It is
/// not given up, and gets them all when it continues.
#[test]
fn a_reader_that_is_stopped_under_long_steps_gets_them_all() {
    let name = full_name(
        module_path!(),
        "a_reader_that_is_stopped_under_long_steps_gets_them_all",
    );
    let body = |unit: &Unit| match unit.rank {
        0 => coordinate(unit),
        1 => write(unit),
        _ => read(unit),
    };
    let (writer, reader) = (Who::Unit(1), Who::Unit(2));
    units(3).orchestrate_bare(&name, body, |cluster| {
        cluster.wait_point(writer, "open");
        cluster.wait_point(reader, "asked");
        cluster.stop(reader);
        cluster.release(writer);
        cluster.wait_point(writer, "written");
        cluster.go_on(reader);
        cluster.release(reader);
        cluster.release(writer);
        cluster.all_end();
    });
}
