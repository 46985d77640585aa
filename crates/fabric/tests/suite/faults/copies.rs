//! kill -9 in the middle of each copy path. The first two units stream large messages to each other
//! until one is killed; what the other one got before is whole, then it sees the loss, once, and
//! goes on with the third.

use samite_fabric::{Config, Error, Fabric, Mask, Match, PeerId, Segment, Whom, testing};
use samite_testkit::pattern::{pattern, verify};
use samite_testkit::{
    Cluster, Failed, ONE_NODE, Outcome, Who, full_name, matches_or_fail, pause, point, same, units,
};
use std::time::Duration;

const SIZE: usize = (8 << 20) + 5;
/// The victim says where it is after so many messages: it is then in the middle of one.
const WARM: u64 = 3;

/// How the bytes travel.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Path {
    Ring,
    Kernel,
    Cooperative,
    Direct,
    View,
}

impl Path {
    fn mask(self) -> Mask {
        match self {
            Path::Ring => Mask::MESSAGES_ONLY,
            Path::Kernel => Mask {
                cooperative: true,
                ..ONE_NODE
            },
            Path::Cooperative | Path::Direct | Path::View => ONE_NODE,
        }
    }

    fn config(self, config: &mut Config) {
        config.mask = self.mask();
        // The path is what is tested, not the choice of it.
        for rate in &mut config.costs.rates {
            rate.ring = 1.0;
            rate.kernel = 2.0;
            rate.cooperative = 3.0;
        }
    }
}

fn send(
    fabric: &Fabric,
    to: PeerId,
    path: Path,
    segment: &Segment,
    bytes: &[u8],
) -> Result<(), Error> {
    match path {
        Path::Direct | Path::View => {
            segment.bytes().write(0, bytes);
            fabric
                .isend_shared(to, 1, segment.bytes().slice(0, SIZE as u64))?
                .wait()
                .map(|_| ())
        }
        _ => fabric.send(to, 1, bytes),
    }
}

fn receive(fabric: &Fabric, from: PeerId, path: Path, buffer: &mut [u8]) -> Result<(), Error> {
    match path {
        Path::View => {
            let view = fabric.recv_view(Match::from(from, 1))?;
            view.bytes().read(0, buffer);
            Ok(())
        }
        _ => fabric.recv(Match::from(from, 1), buffer).map(|_| ()),
    }
}

/// Streams until the other side is gone; the error.
fn stream(fabric: &Fabric, members: &[PeerId], sender: bool, path: Path) -> Outcome<Error> {
    let other = members[usize::from(sender)];
    let bytes = pattern(7, SIZE);
    let segment = fabric.allocate(SIZE as u64)?;
    let mut buffer = vec![0; SIZE];
    let mut count = 0;
    loop {
        let ended = match sender {
            true => send(fabric, other, path, &segment, &bytes),
            false => receive(fabric, other, path, &mut buffer),
        };
        if let Err(error) = ended {
            return Ok(error);
        }
        if !sender {
            verify(7, &buffer)?;
            buffer.fill(0);
        }
        count += 1;
        if count == WARM {
            point("in the middle");
        }
    }
}

fn killed(name: &str, path: Path, victim: u32) {
    let body = |fabric: &Fabric, members: &[PeerId]| -> Outcome {
        let rank = members.iter().position(|member| *member == fabric.me());
        match rank {
            Some(2) => {}
            Some(rank) => {
                let error = stream(fabric, members, rank == 0, path)?;
                let dead = members[victim as usize];
                matches_or_fail!(error, Error::PeerLost { peer, .. } if *peer == dead);
            }
            None => return Err(Failed::new("no member")),
        }
        // The survivors go on.
        let others = [members[1 - victim as usize], members[2]];
        for to in others {
            fabric.send(to, 2, &pattern(9, 1000))?;
        }
        for from in others {
            let mut buffer = [0; 1000];
            fabric.recv(Match::from(from, 2), &mut buffer)?;
            verify(9, &buffer)?;
        }
        Ok(fabric.barrier(&others)?)
    };
    units(3).config(|config| path.config(config)).orchestrate(
        name,
        body,
        |cluster: &mut Cluster| {
            cluster.wait_point(Who::Unit(victim), "in the middle");
            cluster.kill(Who::Unit(victim));
        },
    );
}

macro_rules! kills {
    ($($name:ident: $path:ident, $victim:expr;)*) => {
        $(
            #[test]
            fn $name() {
                let name = full_name(module_path!(), stringify!($name));
                killed(&name, Path::$path, $victim);
            }
        )*
    };
}

kills! {
    ring_sender: Ring, 0;
    ring_receiver: Ring, 1;
    kernel_sender: Kernel, 0;
    kernel_receiver: Kernel, 1;
    cooperative_sender: Cooperative, 0;
    cooperative_receiver: Cooperative, 1;
    direct_sender: Direct, 0;
    direct_receiver: Direct, 1;
    view_sender: View, 0;
    view_receiver: View, 1;
}

/// The receiver dies while it holds a view: the sender's operation ends with the loss.
#[test]
fn a_view_dies_with_its_holder() {
    let body = |fabric: &Fabric, members: &[PeerId]| -> Outcome {
        if fabric.me() == members[1] {
            let _view = fabric.recv_view(Match::any(1))?;
            pause("holding");
        } else {
            let segment = fabric.allocate(1 << 20)?;
            let sent = fabric
                .isend_shared(members[1], 1, segment.bytes().clone())?
                .wait();
            matches_or_fail!(sent, Err(Error::PeerLost { .. }));
        }
        Ok(())
    };
    let units = units(2).mask(ONE_NODE);
    units.orchestrate(
        "faults::copies::a_view_dies_with_its_holder",
        body,
        |cluster| {
            cluster.wait_point(Who::Unit(1), "holding");
            cluster.kill(Who::Unit(1));
        },
    );
}

/// The sender dies while its message is being viewed: the bytes stay until the view is dropped,
/// also when others take all the memory that there is; then the memory is there for others.
#[test]
fn a_view_outlives_its_sender() {
    const BYTES: u64 = 8 << 20;
    let body = |fabric: &Fabric, members: &[PeerId]| -> Outcome {
        let rank = members.iter().position(|member| *member == fabric.me());
        fabric.barrier(members)?; // There are rings before there is no memory for them.
        for to in members {
            fabric.signal(*to, 0)?;
        }
        if rank == Some(0) {
            let segment = fabric.allocate(BYTES)?;
            segment.bytes().write(0, &pattern(3, BYTES as usize));
            fabric
                .isend_shared(members[1], 1, segment.bytes().clone())?
                .wait()?;
            return Ok(());
        }
        let take_everything = || {
            let mut all = Vec::new();
            while let Ok(segment) = fabric.allocate(2 << 20) {
                segment.bytes().fill(0xdd);
                all.push(segment);
            }
            all
        };
        if rank == Some(1) {
            let view = fabric.recv_view(Match::from(members[0], 1))?;
            same!(view.in_place(), true);
            point("viewing");
            while fabric.peers().iter().any(|info| info.peer == members[0]) {}
            fabric.signal(members[2], 1)?;
            fabric.await_signal(members[2], 2)?;
            let mut bytes = vec![0; BYTES as usize];
            view.bytes().read(0, &mut bytes);
            verify(3, &bytes)?;
            drop(view);
            fabric.signal(members[2], 3)?;
            return Ok(fabric.await_signal(members[2], 4)?);
        }
        fabric.await_signal(members[1], 1)?;
        let all = take_everything();
        let before = all.len();
        fabric.signal(members[1], 2)?;
        fabric.await_signal(members[1], 3)?;
        // The agent gives it back as soon as it learns that nobody looks at it any more.
        let mut more = Vec::new();
        let start = std::time::Instant::now();
        while more.len() < (BYTES >> 21) as usize && start.elapsed() < fabric.deadline() {
            fabric.progress();
            match fabric.allocate(2 << 20) {
                Ok(segment) => more.push(segment),
                Err(error) => matches_or_fail!(error, Error::Budget { .. }),
            }
        }
        same!((before > 0, more.len()), (true, (BYTES >> 21) as usize));
        Ok(fabric.signal(members[1], 4)?)
    };
    units(3).mask(ONE_NODE).budget(32 << 20).orchestrate(
        "faults::copies::a_view_outlives_its_sender",
        body,
        |cluster| {
            cluster.wait_point(Who::Unit(1), "viewing");
            cluster.kill(Who::Unit(0));
        },
    );
}

/// The sender's deadline is over while its message is being viewed, and it writes the next one into
/// the segment: the view says so, before and after. The sender's next message is another one.
#[test]
fn a_view_knows_that_it_was_withdrawn() {
    const BYTES: u64 = 1 << 20;
    let body = |fabric: &Fabric, members: &[PeerId]| -> Outcome {
        let (sender, viewer) = (members[0], members[1]);
        if fabric.me() == sender {
            let segment = fabric.allocate(BYTES)?;
            segment.bytes().write(0, &pattern(1, BYTES as usize));
            let send = fabric.isend_shared(viewer, 1, segment.bytes().clone())?;
            fabric.await_signal(viewer, 1)?;
            fabric.set_deadline(Duration::from_millis(50));
            matches_or_fail!(send.wait(), Err(Error::Timeout { .. }));
            fabric.set_deadline(Duration::from_secs(30));
            fabric.signal(viewer, 1)?;
            // What was withdrawn is not let go before the view is: the words of what follows are
            // others.
            fabric.await_signal(viewer, 2)?;
            for round in 2..5 {
                segment.bytes().write(0, &pattern(round, BYTES as usize));
                fabric
                    .isend_shared(viewer, round, segment.bytes().clone())?
                    .wait()?;
            }
            return Ok(());
        }
        let view = fabric.recv_view(Match::from(sender, 1))?;
        fabric.signal(sender, 1)?;
        let mut bytes = vec![0; BYTES as usize];
        view.bytes().read(0, &mut bytes);
        verify(1, &bytes)?;
        same!(view.in_place(), true);
        fabric.await_signal(sender, 1)?;
        same!(view.is_withdrawn(), true);
        fabric.signal(sender, 2)?;
        for round in 2..5 {
            let next = fabric.recv_view(Match::from(sender, round))?;
            next.bytes().read(0, &mut bytes);
            verify(round, &bytes)?;
            same!((next.is_withdrawn(), view.is_withdrawn()), (false, true));
        }
        drop(view);
        Ok(())
    };
    let units = units(2).mask(ONE_NODE);
    units.run("faults::copies::a_view_knows_that_it_was_withdrawn", body);
}

/// A sender is stopped in the middle of a piece that it copies into a lent buffer, for ever. The
/// receiver, which cannot return while that is so, does not abort: the agent ends the sender.
#[test]
fn who_is_stopped_inside_its_piece_is_ended() {
    let body = |fabric: &Fabric, members: &[PeerId]| -> Outcome {
        let (zero, one) = (members[0], members[1]);
        if fabric.me() == one {
            let _send = fabric.isend(zero, 1, pattern(7, SIZE))?;
            fabric.signal(zero, 1)?;
            while !testing::take_piece(fabric) {
                fabric.progress();
            }
            point("inside");
            loop {
                std::thread::park();
            }
        }
        fabric.await_signal(one, 1)?;
        fabric.set_deadline(Duration::from_millis(50));
        testing::set_grace(fabric, Duration::from_millis(50));
        let mut buffer = vec![0; SIZE];
        let ended = fabric.scope(|scope| -> Result<(), Error> {
            let receive = scope.irecv(Match::from(one, 1), &mut buffer)?;
            pause("asked for help");
            receive.wait().map(drop)
        });
        matches_or_fail!(ended, Err(Error::Timeout { whom, .. }) if *whom == Whom::Peer(one));
        buffer.fill(0);
        let lost = fabric.recv(Match::from(one, 2), &mut []);
        matches_or_fail!(lost, Err(Error::PeerLost { .. }));
        Ok(())
    };
    let name = "faults::copies::who_is_stopped_inside_its_piece_is_ended";
    let units = units(2).config(|config| Path::Cooperative.config(config));
    units.orchestrate(name, body, |cluster| {
        cluster.wait_point(Who::Unit(0), "asked for help");
        cluster.wait_point(Who::Unit(1), "inside");
        cluster.stop(Who::Unit(1));
        cluster.let_die(Who::Unit(1));
        cluster.release(Who::Unit(0));
        cluster.wait_gone(Who::Unit(1));
    });
}
