//! Active messages and their credits.

use super::index;
use crate::pattern::{pattern, verify};
use crate::{Outcome, check, matches_or_fail, same};
use samite_fabric::{Error, Fabric, PeerId};
use std::sync::{Arc, Mutex};

const ECHO: u16 = 1;
const KEEP: u16 = 2;

/// Handlers see the sender and the bytes; a request gets its own reply, a tell gets none.
pub fn handlers_run_and_answer(fabric: &Fabric, members: &[PeerId]) -> Outcome {
    let me = index(fabric, members)?;
    let kept = Arc::new(Mutex::new(Vec::new()));
    let keep = kept.clone();
    fabric.on(KEEP, move |from, bytes| {
        keep.lock().unwrap().push((from, bytes.to_vec()));
        None
    });
    fabric.on(ECHO, |from, bytes| {
        Some([&from.0.to_le_bytes(), bytes].concat())
    });
    fabric.barrier(members)?;
    for to in members {
        fabric.tell(*to, KEEP, format!("from {me}").as_bytes())?;
        for len in [0, 1, 32, 500, 4000] {
            let reply = fabric
                .request(*to, ECHO, &pattern(len, len as usize))?
                .wait()?;
            same!(reply[..4], fabric.me().0.to_le_bytes());
            verify(len, &reply[4..])?;
        }
        let reply = fabric.request(*to, KEEP, b"silent")?.wait()?;
        check!(
            reply.is_empty(),
            "a handler without a reply answered {reply:?}"
        );
    }
    fabric.barrier(members)?;
    let kept = kept.lock().unwrap();
    for (rank, member) in members.iter().enumerate() {
        let theirs: Vec<_> = kept
            .iter()
            .filter(|(from, _)| from == member)
            .map(|(_, b)| b)
            .collect();
        let told = format!("from {rank}").into_bytes();
        same!(theirs, [&told, &b"silent".to_vec()]);
    }
    Ok(())
}

/// Requests and replies that do not fit into a frame.
pub fn long_requests_and_long_replies(fabric: &Fabric, members: &[PeerId]) -> Outcome {
    let body = fabric.caps_to(fabric.me()).body_max as usize;
    fabric.on(ECHO, |_, bytes| Some(bytes.iter().rev().copied().collect()));
    fabric.barrier(members)?;
    let sizes = [body - 1, body, body + 1, 2 * body, 300_001, (2 << 20) + 7];
    for to in members {
        let requests: Result<Vec<_>, _> = sizes
            .iter()
            .map(|size| fabric.request(*to, ECHO, &pattern(*size as u64, *size)))
            .collect();
        for (size, request) in sizes.iter().zip(requests?) {
            let mut reply = request.wait()?;
            same!(reply.len(), *size);
            reply.reverse();
            verify(*size as u64, &reply)?;
        }
    }
    Ok(fabric.barrier(members)?)
}

/// A request for an unknown handler is an error and a tell to one is ignored; other messages are
/// not affected.
pub fn an_unknown_handler_is_an_error(fabric: &Fabric, members: &[PeerId]) -> Outcome {
    fabric.on(ECHO, |_, bytes| Some(bytes.to_vec()));
    fabric.barrier(members)?;
    for to in members {
        for len in [3, 200_000] {
            fabric.tell(*to, 99, &pattern(1, len))?;
            let refused = fabric.request(*to, 99, &pattern(1, len))?.wait();
            same!(
                refused,
                Err(Error::NoHandler {
                    peer: (*to).into(),
                    handler: 99
                })
            );
        }
        same!(fabric.request(*to, ECHO, b"still")?.wait()?, b"still");
    }
    Ok(fabric.barrier(members)?)
}

/// Far more requests than credits, from every member to every member, with the replies taken at the
/// end.
pub fn ten_thousand_requests(fabric: &Fabric, members: &[PeerId]) -> Outcome {
    const COUNT: u64 = 10_000;
    fabric.on(ECHO, |_, bytes| Some(bytes.to_vec()));
    fabric.barrier(members)?;
    let each = COUNT / members.len() as u64;
    let mut requests = Vec::new();
    for number in 0..each {
        for to in members {
            requests.push((number, fabric.request(*to, ECHO, &number.to_le_bytes())?));
        }
    }
    for (number, request) in requests {
        same!(request.wait()?, number.to_le_bytes());
    }
    Ok(fabric.barrier(members)?)
}

/// A request that is abandoned gives its credit back.
pub fn a_cancelled_request_gives_its_credit_back(fabric: &Fabric, members: &[PeerId]) -> Outcome {
    fabric.on(ECHO, |_, bytes| Some(bytes.to_vec()));
    fabric.barrier(members)?;
    let to = members[(index(fabric, members)? + 1) % members.len()];
    for number in 0..600u64 {
        let mut request = fabric.request(to, ECHO, &number.to_le_bytes())?;
        request.cancel();
        matches_or_fail!(request.wait(), Err(Error::Cancelled));
    }
    same!(fabric.request(to, ECHO, b"after")?.wait()?, b"after");
    Ok(fabric.barrier(members)?)
}
