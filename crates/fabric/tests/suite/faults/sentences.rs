//! What errors say: they name units by program and rank, and messages by their tags.

use samite_fabric::{Error, Fabric, Identity, Match, PeerId};
use samite_testkit::{Failed, ONE_NODE, Outcome, Unit, check, same, units};
use std::time::Duration;

/// Unit 0 is the program `plot`; the others are `heat`.
fn join(unit: &Unit) -> Outcome<(Fabric, Vec<PeerId>)> {
    let (program, rank, size) = match unit.rank {
        0 => ("plot", 0, 1),
        rank => ("heat", rank - 1, unit.size - 1),
    };
    let identity = Identity {
        program: program.to_owned(),
        rank,
        size,
        ..unit.identity()
    };
    let fabric = Fabric::join(&unit.domain, identity, unit.config.clone())?;
    let members = fabric.job()?;
    fabric.barrier(&members)?;
    Ok((fabric, members))
}

fn says<T>(ended: Result<T, Error>, sentence: &str) -> Outcome {
    match ended {
        Ok(_) => Err(Failed::new("it succeeded")),
        Err(error) => {
            same!(error.to_string(), sentence);
            let debug = format!("{sentence} [{}]", error.code());
            same!(format!("{error:?}"), debug);
            Ok(())
        }
    }
}

#[test]
fn errors_name_units_and_tags() {
    let body = |unit: &Unit| -> Outcome {
        let (fabric, members) = join(unit)?;
        let (plot, first, second) = (members[0], members[1], members[2]);
        if fabric.me() == second {
            fabric.send(plot, 8, b"eight")?;
        }
        // Its messages have arrived before it does.
        fabric.barrier(&members)?;
        if fabric.me() == plot {
            let patient = fabric.deadline();
            fabric.set_deadline(Duration::from_millis(30));
            let small = &mut [0; 4];
            says(
                fabric.recv(Match::from(second, 7), small),
                "no message with tag 7 came from heat.1 within 30ms; it sent messages with tag 8, which nobody \
                 has received: is the tag right?",
            )?;
            says(
                fabric.recv(Match::any(7), small),
                "no message with tag 7 came from any peer within 30ms; messages with tag 8 came, and nobody has \
                 received them: is the tag right?",
            )?;
            says(
                fabric.recv(Match::from(first, 7).masked(0), small),
                "no message with any tag came from heat.0 within 30ms; is it stopped, or waiting for this process?",
            )?;
            says(
                fabric.recv(Match::from(first, 7).masked(15), small),
                "no message with a tag that equals 0x7 under the mask 0xf came from heat.0 within 30ms; \
                 is it stopped, or waiting for this process?",
            )?;
            says(
                fabric.send(first, 3, &vec![0; 1 << 20]),
                "the message with tag 3 was not taken by heat.0 within 30ms; does it receive this tag, is it \
                 stopped, or waiting for this process?",
            )?;
            says(
                fabric.await_signal(first, 5),
                "no signal with key 5 came from heat.0 within 30ms; is it stopped, or waiting for this process?",
            )?;
            says(
                fabric.barrier(&[plot, first]),
                "a barrier: no answer from heat.0 within 30ms; is it stopped, or waiting for this process?",
            )?;
            fabric.set_deadline(patient);
            says(
                fabric.recv(Match::from(second, 8), small),
                "the message with tag 8 from heat.1 has 5 bytes and does not fit into a buffer of 4; \
                 use a larger buffer, or `recv_vec`",
            )?;
            fabric.barrier(&members)?;
            let answer = fabric.request(first, 9, b"")?.wait();
            says(
                answer,
                "heat.0 has no handler 9: register it there (`on`) before others use it",
            )?;
            fabric.barrier(&members)?;
            // It leaves after this barrier.
            says(
                fabric.recv(Match::from(second, 8), small),
                "heat.1 died or left before the operation was complete",
            )?;
            says(
                fabric.send(second, 8, small),
                "heat.1 died or left before the operation was complete",
            )?;
            return Ok(fabric.barrier(&[plot, first])?);
        }
        fabric.barrier(&members)?;
        fabric.barrier(&members)?;
        if fabric.me() == first {
            fabric.barrier(&[plot, first])?;
        }
        Ok(())
    };
    let name = "faults::sentences::errors_name_units_and_tags";
    units(3).orchestrate_bare(name, body, |_| ());
}

/// Segments are named with their owner, and users with their names.
#[test]
fn errors_name_owners_and_users() {
    let body = |unit: &Unit| -> Outcome {
        let (fabric, members) = join(unit)?;
        let heat = members[1];
        if fabric.me() == heat {
            let segment = fabric.allocate_phased(9, 64)?;
            fabric.barrier(&members)?;
            fabric.barrier(&members)?;
            segment.shut();
            let (segment, in_use) = match segment.own() {
                Ok(_) => return Err(Failed::new("it is attached")),
                Err(refused) => *refused,
            };
            says(
                Err::<(), _>(in_use),
                "segment 9 is still in use by plot.0; drop all attachments to it, and ranges of it, first",
            )?;
            fabric.barrier(&members)?;
            fabric.barrier(&members)?;
            let owned = segment.own().map_err(|refused| refused.1)?;
            fabric.barrier(&members)?;
            fabric.barrier(&members)?;
            drop(owned);
            fabric.barrier(&members)?;
            return Ok(fabric.barrier(&members)?);
        }
        fabric.barrier(&members)?;
        let key = fabric.look_up(heat, 9)?;
        let key = key.ok_or_else(|| Failed::new("it is offered"))?;
        let remote = fabric.attach(key)?;
        fabric.barrier(&members)?;
        fabric.barrier(&members)?;
        drop(remote);
        fabric.barrier(&members)?;
        fabric.barrier(&members)?;
        let shut = fabric.attach(key).and_then(|remote| remote.put(0, &[1]));
        let text = shut.err().map(|error| error.to_string());
        let text = text.unwrap_or_default();
        check!(text.contains("heat.0"), "{text}");
        fabric.barrier(&members)?;
        fabric.barrier(&members)?;
        let gone = fabric.attach(key).and_then(|remote| remote.put(0, &[1]));
        says(gone, "heat.0 has no segment 9; was it freed?")?;
        Ok(fabric.barrier(&members)?)
    };
    let name = "faults::sentences::errors_name_owners_and_users";
    // The users of a segment are those that map it.
    units(2).mask(ONE_NODE).orchestrate_bare(name, body, |_| ());
}
