//! A disk that does not respond.

use super::alone;
use crate::protocol::{self, Answer, Order, Request, Ticket};
use crate::service::block_store::tests::{buffer, capacity, commit, pattern, stall};
use crate::service::{BlockStoreAnswer, BlockStoreRequest, Staging, ToStore, life, own};
use samite_fabric::agent::Service;
use samite_fabric::rpc::{Call, ServiceId};

/// Long enough for two parts.
const BYTES: u64 = (16 << 20) + 5;

/// While a spill is stuck on the disk, the coordinator and the block store answer. Reads from the
/// disk are answered when it continues.
#[test]
fn a_disk_that_stands_still_delays_no_other_answer() {
    let fabric = alone();
    let folder = tempfile::tempdir().expect("a folder");
    let mut service = Staging::new(&fabric, capacity(&folder));
    let call = |service, encode: &dyn Fn(u64) -> Vec<u8>| {
        let call = fabric.call(service, life(own(&fabric)), fabric.deadline(), encode);
        call.expect("it serves")
    };
    let ask_store = |ask: BlockStoreRequest| {
        let encode = |_| protocol::encode(&ToStore::Ask(ask.clone()));
        call(ServiceId::BLOCK_STORE, &encode)
    };
    commit(&fabric, &mut service.store.block_store, 1, BYTES);
    let go_on = stall(&mut service.store.block_store);
    assert_eq!(
        service
            .store
            .block_store
            .obey(Order::Spill { buffer: buffer(1) }),
        None
    );
    let streams = call(ServiceId::COORDINATOR, &|id| {
        protocol::encode(&Request::Figures { ticket: Ticket(id) })
    });
    let blocks = ask_store(BlockStoreRequest::Figures);
    let answers = [streams, blocks].map(|mut call: Call| {
        for _ in 0..100 {
            fabric.progress();
            service.turn();
            if let Some(answer) = call.take() {
                return answer.expect("it serves");
            }
        }
        panic!("no answer");
    });
    let streams = protocol::decode::<Answer>(&answers[0]);
    assert!(matches!(streams, Some(Answer::Figures(_))), "{streams:?}");
    let blocks = protocol::decode::<BlockStoreAnswer>(&answers[1]);
    assert!(matches!(blocks, Some(Ok(_))), "{blocks:?}");
    assert_eq!(service.store.owns()[2].amount, 0, "nothing is spilled yet");
    go_on.send(()).expect("it was stuck until now");
    while service.store.owns()[2].amount == 0 {
        fabric.progress();
        service.turn();
    }
    // The host may sleep meanwhile.
    let mut call = ask_store(BlockStoreRequest::Load(buffer(1), 7, 1000));
    let mut answer = None;
    let ran = service.run(|_| {
        answer = call.take();
        answer.is_none()
    });
    ran.expect("nobody is lost");
    let answer = answer.map(|answer| answer.expect("it serves"));
    let answer = answer.and_then(|bytes| protocol::decode::<BlockStoreAnswer>(&bytes));
    assert_eq!(answer, Some(Ok(pattern(1, BYTES)[7..1007].to_vec())));
}
