//! The kernel copy refused, by choice and for real; another user who tries to join.

use rustix::net::{AddressFamily, RecvFlags, SocketAddrUnix, SocketType};
use rustix::process::{DumpableBehavior, Gid, Uid};
use samite_fabric::{Error, Fabric, Mask, Match, PeerId};
use samite_testkit::contract::{index, sizes};
use samite_testkit::pattern::{pattern, verify};
use samite_testkit::{Outcome, Unit, Who, check, matches_or_fail, require, units};

/// From now on no process of the same user may read this one, and this one reads nobody: what a
/// container or a hardened kernel does.
fn refuse_kernel_copies() {
    let refused = rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable);
    refused.expect("a process may hide itself");
    let mut sets = rustix::thread::capabilities(None).expect("a thread may see its capabilities");
    let ptrace = rustix::thread::CapabilitySet::SYS_PTRACE;
    sets.effective.remove(ptrace);
    sets.permitted.remove(ptrace);
    sets.inheritable.remove(ptrace);
    rustix::thread::set_capabilities(None, sets).expect("a thread may give capabilities up");
}

/// Proves that the kernel really refuses, by trying.
fn kernel_refuses(fabric: &Fabric, peer: PeerId) -> Outcome {
    let word = 0u64;
    let pid = fabric
        .peers()
        .iter()
        .find(|info| info.peer == peer)
        .map_or(0, |info| info.pid);
    let address = std::ptr::from_ref(&word) as u64;
    let tried = samite_mem::copy::kernel::read_exact(pid, address, &mut [0; 8]);
    let errno = tried.err().and_then(|error| error.raw_os_error());
    check!(
        errno == Some(rustix::io::Errno::PERM.raw_os_error()),
        "the kernel answered {errno:?}"
    );
    Ok(())
}

/// Switched off by configuration.
#[test]
fn by_choice() {
    let mask = Mask {
        kernel_copy: true,
        ..Mask::default()
    };
    let body = sizes::large_sizes_between_all_kinds_of_buffers;
    units(3).mask(mask).run("faults::refused::by_choice", body);
}

/// Refused by the kernel from the start: the same results through the ring.
#[test]
fn by_the_kernel() {
    let body = |fabric: &Fabric, members: &[PeerId]| -> Outcome {
        kernel_refuses(
            fabric,
            members[(index(fabric, members)? + 1) % members.len()],
        )?;
        sizes::large_sizes_between_all_kinds_of_buffers(fabric, members)
    };
    let before = |who| {
        if who != Who::Agent {
            refuse_kernel_copies();
        }
    };
    units(3)
        .before(before)
        .run("faults::refused::by_the_kernel", body);
}

/// It worked, and then it does not any more, in the middle of things: per message, same results.
#[test]
fn by_the_kernel_later() {
    const SIZE: usize = (4 << 20) + 1;
    let body = |fabric: &Fabric, members: &[PeerId]| -> Outcome {
        let me = index(fabric, members)?;
        let other = members[1 - me];
        for round in 0..20u64 {
            if round == 10 {
                refuse_kernel_copies();
            }
            let receive = fabric.irecv(Match::from(other, round), vec![0; SIZE])?;
            let send = fabric.isend(other, round, pattern(round * 2 + me as u64, SIZE))?;
            verify(
                round * 2 + 1 - me as u64,
                &receive.wait()?.1.unwrap_or_default(),
            )?;
            send.wait()?;
        }
        fabric.barrier(members)?;
        kernel_refuses(fabric, other)?;
        let registered = fabric.register(pattern(5, SIZE))?;
        fabric.send(other, 100, &registered.key().to_bytes())?;
        let mut key = [0; 24];
        fabric.recv(Match::from(other, 100), &mut key)?;
        let mut bytes = vec![0; SIZE];
        fabric
            .attach(samite_fabric::SegmentKey::from_bytes(&key))?
            .get(0, &mut bytes)?;
        verify(5, &bytes)?;
        Ok(fabric.barrier(members)?)
    };
    units(2).run("faults::refused::by_the_kernel_later", body);
}

/// Only the same user may join: another one does not even find the agent, and if it knocks at the
/// right door it is turned away.
#[test]
fn another_user() {
    const NAME: &str = "faults::refused::another_user";
    if !require(
        NAME,
        rustix::process::getuid().is_root(),
        "run it as root (it becomes another user)",
    ) {
        return;
    }
    let body = |unit: &Unit| -> Outcome {
        let owner = rustix::process::getuid().as_raw();
        let (user, group) = (Uid::from_raw(65534), Gid::from_raw(65534));
        rustix::thread::set_thread_res_gid(group, group, group).map_err(std::io::Error::from)?;
        rustix::thread::set_thread_res_uid(user, user, user).map_err(std::io::Error::from)?;
        let joined = unit.join().map(|_| ());
        check!(
            joined.as_ref().is_err_and(|why| why
                .0
                .contains("no agent listens under this name for this user")),
            "joining as another user: {joined:?}"
        );
        let name = format!("samite/{owner}/{}", unit.domain);
        let address =
            SocketAddrUnix::new_abstract_name(name.as_bytes()).map_err(std::io::Error::from)?;
        let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None)
            .map_err(std::io::Error::from)?;
        rustix::net::connect(&socket, &address).map_err(std::io::Error::from)?;
        // It is turned away before it has said anything.
        let mut answer = [0; 1000];
        let (got, _) = rustix::net::recv(&socket, &mut answer, RecvFlags::empty())
            .map_err(std::io::Error::from)?;
        let answer = String::from_utf8_lossy(&answer[..got]).into_owned();
        check!(
            answer.contains("Refused") && answer.contains("only the same user"),
            "{answer}"
        );
        Ok(())
    };
    units(1).orchestrate_bare(NAME, body, |_| {});
}

/// The name of a domain that is not there, and one that is too long, are clear errors.
#[test]
fn a_domain_that_is_not_there() {
    for (name, why) in [
        ("no-such-domain", "no agent listens"),
        (&"x".repeat(200), "too long"),
    ] {
        let identity = samite_fabric::Identity::by_hand("test");
        let joined = Fabric::join(name, identity, Default::default()).map(|_| ());
        let expected =
            |error: &Error| matches!(error, Error::Join { .. }) && error.to_string().contains(why);
        let body = || -> Outcome {
            matches_or_fail!(joined, Err(error) if expected(error));
            Ok(())
        };
        body().unwrap_or_else(|failed| panic!("{failed}"));
    }
}
