//! A disk that stands still.

use super::alone;
use crate::protocol::{self, Answer, Order, Request, Ticket};
use crate::service::keeper::tests::{buffer, commit, pattern, room, stall};
use crate::service::{KeeperAnswer, KeeperAsk, Letter, Number, Service, life, own};
use samite_fabric::rpc::Call;

/// Long enough for two parts.
const BYTES: u64 = (16 << 20) + 5;

/// A buffer is spilled, and the disk does not go on: the coordinator and the block store answer meanwhile, and what is
/// asked of the disk is answered when it goes on.
#[test]
fn a_disk_that_stands_still_delays_no_other_answer() {
    let fabric = alone();
    let folder = tempfile::tempdir().expect("a folder");
    let mut service = Service::steward(&fabric, room(&folder));
    let ask = |make: &dyn Fn(Ticket) -> Letter| {
        let encode = |id| protocol::encode(&make(Ticket(id)));
        let call = fabric.call(Number::STAGING, life(own(&fabric)), fabric.deadline(), encode);
        call.expect("it serves")
    };
    commit(&fabric, &mut service.keeper, 1, BYTES);
    let go_on = stall(&mut service.keeper);
    service.obey(Order::Spill { buffer: buffer(1) });
    let streams = ask(&|ticket| Letter::Request(Request::Figures { ticket }));
    let blocks = ask(&|_| Letter::Ask(KeeperAsk::Figures));
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
    let blocks = protocol::decode::<KeeperAnswer>(&answers[1]);
    assert!(matches!(blocks, Some(Ok(_))), "{blocks:?}");
    assert_eq!(service.keeper.figures().files, 0);
    go_on.send(()).expect("it was stuck until now");
    while service.keeper.figures().files == 0 {
        fabric.progress();
        service.turn();
    }
    // One that sleeps is woken by the disk.
    let mut call = ask(&|_| Letter::Ask(KeeperAsk::Load(buffer(1), 7, 1000)));
    let mut answer = None;
    let ran = service.run(|_| {
        answer = call.take();
        answer.is_none()
    });
    ran.expect("nobody is lost");
    let answer = answer.map(|answer| answer.expect("it serves"));
    let answer = answer.and_then(|bytes| protocol::decode::<KeeperAnswer>(&bytes));
    assert_eq!(answer, Some(Ok(pattern(1, BYTES)[7..1007].to_vec())));
}
