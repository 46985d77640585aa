//! Services: requests that are answered later, and requests that are refused.

use super::index;
use crate::pattern::{pattern, verify};
use crate::{Outcome, check, same};
use samite_fabric::rpc::{Call, Life, Server, ServiceId};
use samite_fabric::{Fabric, PeerId};
use std::collections::BTreeSet;
use std::time::Duration;

/// Longer than any test.
const LONG: Duration = Duration::from_secs(60);
const SERVICE: ServiceId = ServiceId::COORDINATOR;
/// Number of requests to each member.
const EACH: usize = 12;

fn life(fabric: &Fabric, peer: PeerId) -> Outcome<Life> {
    let peers = fabric.peers();
    let info = peers.iter().find(|info| info.peer == peer);
    check!(info.is_some(), "{peer} is not there");
    let incarnation = info.map_or(0, |info| info.incarnation);
    Ok(Life { peer, incarnation })
}

/// No member responds before all requests have arrived; then it answers the last one first.
pub fn requests_are_answered_later(fabric: &Fabric, members: &[PeerId]) -> Outcome {
    let server = fabric.serve(SERVICE, 64 << 20);
    fabric.barrier(members)?;
    let sizes = [1, 500, 100_001, (1 << 20) + 7];
    let mut calls: Vec<(usize, Call)> = Vec::new();
    for to in members {
        for number in 0..EACH {
            let size = sizes[number % sizes.len()];
            let to = life(fabric, *to)?;
            let call = fabric.call(SERVICE, to, LONG, |_| pattern(size as u64, size))?;
            calls.push((size, call));
        }
    }
    let mut asked = Vec::new();
    let mut failed = None;
    let mut serve = || {
        asked.extend(std::iter::from_fn(|| server.take()));
        if asked.len() == members.len() * EACH {
            while let Some(request) = asked.pop() {
                let bytes: Vec<u8> = request.bytes.iter().rev().copied().collect();
                let id = request.id.unwrap_or(0);
                let responded = server.respond(request.from, id, &bytes, LONG);
                failed = failed.take().or(responded.err());
            }
        }
        false
    };
    for (size, call) in &mut calls {
        let mut response = call.wait_stepping(LONG, "a response", &mut serve)?;
        same!(response.len(), *size);
        response.reverse();
        verify(*size as u64, &response)?;
    }
    check!(failed.is_none(), "{failed:?}");
    Ok(fabric.barrier(members)?)
}

/// The first member does not serve yet when the first requests arrive, and then has capacity for
/// one request of each caller at a time. Each request is taken once, and the callers notice
/// nothing.
pub fn a_request_that_is_refused_is_sent_again(fabric: &Fabric, members: &[PeerId]) -> Outcome {
    let numbers = [0..EACH, EACH..2 * EACH];
    if index(fabric, members)? != 0 {
        let to = life(fabric, members[0])?;
        for numbers in numbers {
            let call = |number| fabric.call(SERVICE, to, LONG, |_| vec![number as u8]);
            let calls: Result<Vec<_>, _> = numbers.clone().map(call).collect();
            fabric.signal(members[0], 1)?;
            for (number, mut call) in numbers.zip(calls?) {
                same!(call.wait(LONG, "a response")?, [number as u8, 1]);
            }
            fabric.barrier(members)?;
        }
        return Ok(());
    }
    let callers = &members[1..];
    let mut server = None;
    let mut taken = BTreeSet::new();
    for numbers in numbers {
        for caller in callers {
            fabric.await_signal(*caller, 1)?;
        }
        let server = server.get_or_insert_with(|| fabric.serve(SERVICE, 0));
        // The second requests arrived before the signals; all but one of each caller were refused.
        let waiting = server.waiting();
        check!(waiting <= callers.len(), "{waiting} requests wait");
        let all = callers.len() * numbers.end;
        let served = fabric.wait_stepping(
            "all requests",
            &[],
            || serve_one(server, &mut taken, all).transpose(),
            || server.waiting() > 0,
        )?;
        served?;
        fabric.barrier(members)?;
    }
    Ok(())
}

/// Serves one request; returns `Some` when all have been taken.
fn serve_one(server: &Server, taken: &mut BTreeSet<(Life, u8)>, all: usize) -> Outcome<Option<()>> {
    if let Some(asked) = server.take() {
        let number = asked.bytes[0];
        check!(taken.insert((asked.from, number)), "{number} came twice");
        let id = asked.id.unwrap_or(0);
        server.respond(asked.from, id, &[number, 1], LONG)?;
    }
    Ok((taken.len() == all).then_some(()))
}
