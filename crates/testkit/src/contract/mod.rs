//! The contract of every transport. A case is a function that all members of a job run; it knows
//! nothing of the transport below.
//!
//! ```ignore
//! samite_testkit::contract!(shm, |name, case| samite_testkit::units(3).run(name, case));
//! ```
//!
//! # Files
//! `order` (order, tags, probe, truncation) · `cancel` · `sizes` (every size class, every kind of
//! buffer, full rings) · `active` (active messages, credits) · `rpc` (services) · `onesided` (put,
//! get, atomics, refusals) · `rma` (order of puts, withdrawal, loss) · `waiting` (deadlines,
//! signals, handles, claims of `Caps`) · `loss` (a member that leaves)

pub mod active;
pub mod cancel;
pub mod loss;
pub mod onesided;
pub mod order;
pub mod rma;
pub mod rpc;
pub mod sizes;
pub mod waiting;

use crate::{Failed, Outcome};
use samite_fabric::{Fabric, PeerId};

/// A case of the suite. All members run it with the same list of at least three members.
pub type Case = fn(&Fabric, &[PeerId]) -> Outcome;

/// Returns the index of this process among the members.
pub fn index(fabric: &Fabric, members: &[PeerId]) -> Outcome<usize> {
    let found = members.iter().position(|member| *member == fabric.me());
    found.ok_or_else(|| Failed::new("this process is not among the members"))
}

/// Computes for some microseconds without the fabric, so that others can proceed.
pub(crate) fn work() {
    let mut state = 1u64;
    for _ in 0..20_000 {
        state = std::hint::black_box(state.wrapping_mul(6364136223846793005).wrapping_add(1));
    }
}

/// Creates one test per case: `$run` is called with the full name of the test and the case.
#[macro_export]
macro_rules! contract {
    ($suite:ident, $run:expr) => {
        $crate::contract!(@ $suite, $run,
            order::messages_of_a_pair_stay_in_order,
            order::any_source_takes_from_everybody,
            order::tags_and_masks_choose,
            order::probe_looks_and_leaves,
            cancel::a_receive_is_cancelled_before_it_matches,
            cancel::a_finished_receive_cannot_be_cancelled,
            cancel::a_receive_is_cancelled_while_it_is_filled,
            cancel::a_send_is_cancelled,
            cancel::what_has_ended_can_be_cancelled,
            cancel::a_scope_says_what_went_wrong,
            order::a_message_that_does_not_fit_is_consumed,
            order::empty_messages_arrive,
            order::messages_to_oneself_arrive,
            order::large_messages_do_not_block_small_ones,
            order::a_slow_receiver_serves_everybody,
            sizes::every_size_between_all_kinds_of_buffers,
            sizes::large_sizes_between_all_kinds_of_buffers,
            sizes::full_rings_in_both_directions,
            sizes::large_messages_in_both_directions,
            active::handlers_run_and_answer,
            active::long_requests_and_long_replies,
            active::an_unknown_handler_is_an_error,
            active::ten_thousand_requests,
            active::a_cancelled_request_gives_its_credit_back,
            rpc::requests_are_answered_later,
            rpc::a_request_that_is_refused_is_sent_again,
            onesided::what_is_put_is_got,
            onesided::everybody_puts_at_once,
            onesided::atomics_do_what_they_say,
            onesided::concurrent_atomics_lose_nothing,
            onesided::registered_private_memory,
            onesided::a_freed_segment_is_refused,
            onesided::places_outside_and_misaligned_are_refused,
            onesided::the_budget_is_a_refusal,
            onesided::a_fresh_segment_is_zero,
            onesided::elements_larger_than_a_frame,
            rma::what_is_sent_after_a_put_is_seen_after_it,
            rma::a_barrier_follows_the_puts_to_its_root,
            rma::large_puts_and_gets_meet,
            rma::what_is_in_flight_to_a_lost_owner_ends,
            rma::nobody_writes_what_the_owner_has_for_itself,
            waiting::signals_are_counted,
            waiting::nobody_passes_a_barrier_early,
            waiting::a_deadline_names_whom,
            waiting::handles_can_be_awaited,
            waiting::many_handles_at_once,
            waiting::who_waits_sleeps,
            waiting::mapped_means_mapped,
            loss::who_leaves_ends_what_depends_on_it,
            loss::last_words_arrive,
            loss::last_words_are_taken_one_by_one,
            loss::a_lost_owner_is_an_error,
        );
    };
    (@ $suite:ident, $run:expr, $($file:ident :: $case:ident),* $(,)?) => {
        mod $suite {
            use super::*;
            $(
                #[test]
                fn $case() {
                    let run: fn(&str, $crate::contract::Case) = $run;
                    let name = $crate::full_name(module_path!(), stringify!($case));
                    run(&name, $crate::contract::$file::$case);
                }
            )*
        }
    };
}
