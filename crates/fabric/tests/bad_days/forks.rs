//! A fork of a process that joined has a copy of everything, and none of it is its own.

use samite_fabric::{Config, Error, Fabric, Identity, Match, PeerId};
use samite_testkit::pattern::{pattern, verify};
use samite_testkit::{Failed, Outcome, matches_or_fail, same, units};

/// Messages that the parent sends afterwards: more than a ring has cells.
const MESSAGES: u64 = 1500;

/// Whatever the child tries is refused, or does nothing.
fn try_everything(fabric: &Fabric, to: PeerId, members: &[PeerId]) -> Outcome {
    let bytes = vec![0x5a; 100_000];
    for len in [0, 100, 5_000, bytes.len()] {
        matches_or_fail!(fabric.send(to, 1, &bytes[..len]), Err(Error::Forked));
    }
    matches_or_fail!(fabric.signal(to, 1), Err(Error::Forked));
    matches_or_fail!(fabric.await_signal(to, 1), Err(Error::Forked));
    matches_or_fail!(fabric.barrier(members), Err(Error::Forked));
    matches_or_fail!(fabric.tell(to, 1, b"told"), Err(Error::Forked));
    let mut buffer = [0; 64];
    matches_or_fail!(fabric.recv(Match::any(1), &mut buffer), Err(Error::Forked));
    matches_or_fail!(
        fabric.recv(Match::from(to, 1), &mut buffer),
        Err(Error::Forked)
    );
    matches_or_fail!(fabric.recv_vec(Match::any(1)), Err(Error::Forked));
    matches_or_fail!(
        fabric.wait_until("a word", &[], || None::<()>),
        Err(Error::Forked)
    );
    matches_or_fail!(fabric.allocate(1 << 20), Err(Error::Forked));
    matches_or_fail!(fabric.allocate(8 << 20), Err(Error::Forked));
    for _ in 0..10_000 {
        same!(fabric.progress(), 0);
    }
    Ok(())
}

/// The child speaks with nobody and takes nothing; all that the parent had works as before.
#[test]
fn a_fork_does_not_speak_for_its_parent() {
    let body = |fabric: &Fabric, members: &[PeerId]| -> Outcome {
        let (first, second) = (members[0], members[1]);
        if fabric.me() == second {
            let segment = fabric.allocate(1 << 20)?;
            segment.bytes().fill(7);
            let viewed = fabric.isend_shared(first, 1, segment.bytes().clone())?;
            // In the ring, and with this process, when the other one forks.
            fabric.send(first, 2, b"before")?;
            let large = fabric.isend(first, 3, pattern(3, 300_000))?;
            fabric.signal(first, 4)?;
            for message in 0..MESSAGES {
                let (_, bytes) = fabric.recv_vec(Match::from(first, message))?;
                verify(message, &bytes)?;
            }
            viewed.wait()?;
            large.wait()?;
            return Ok(fabric.barrier(members)?);
        }
        let own = fabric.allocate(1 << 20)?;
        let view = fabric.recv_view(Match::from(second, 1))?;
        // All that the other one sends at once has come.
        fabric.await_signal(second, 4)?;
        let posted = fabric.irecv(Match::from(second, 5), vec![0; 64])?;
        let child = fork::fork().map_err(|error| Failed::new(format!("fork: {error:?}")))?;
        let fork::Fork::Parent(child) = child else {
            let tried = try_everything(fabric, second, members);
            drop((view, posted, own));
            // By itself it can join like any other process.
            let domain = fabric.domain().unwrap_or_default();
            let joined = Fabric::join(domain, Identity::by_hand("child"), Config::default());
            let joined = joined.and_then(|own| own.allocate(4 << 20).map(|segment| segment.key()));
            if let Err(error) = &tried {
                eprintln!("the child: {error:?}");
            }
            std::process::exit(if tried.is_ok() && joined.is_ok() {
                0
            } else {
                1
            });
        };
        let child = rustix::process::Pid::from_raw(child);
        let ended = rustix::process::waitpid(child, rustix::process::WaitOptions::empty());
        let ended = ended.map_err(std::io::Error::from)?;
        same!(ended.and_then(|(_, status)| status.exit_status()), Some(0));
        let mut bytes = vec![0; 1 << 20];
        view.bytes().read(0, &mut bytes);
        same!(bytes.iter().all(|byte| *byte == 7), true);
        let mut before = [0; 6];
        fabric.recv(Match::from(second, 2), &mut before)?;
        same!(&before, b"before");
        verify(3, &fabric.recv_vec(Match::from(second, 3))?.1)?;
        for message in 0..MESSAGES {
            let len = 10 + message as usize % 3_000;
            fabric.send(second, message, &pattern(message, len))?;
        }
        drop(view);
        drop(posted);
        let again = fabric.allocate(1 << 20)?;
        again.bytes().fill(9);
        own.bytes().fill(8);
        again.bytes().read(0, &mut bytes);
        same!(bytes.iter().all(|byte| *byte == 9), true);
        Ok(fabric.barrier(members)?)
    };
    units(2).run("forks::a_fork_does_not_speak_for_its_parent", body);
}
