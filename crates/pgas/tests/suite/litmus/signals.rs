//! Signals: what comes before them.

use crate::litmus::{litmus, rounds};
use samite_fabric::{Fabric, Mask};
use samite_pgas::{Pgas, Signal, SignalOp, Wanted};
use samite_testkit::{Outcome, check, same, units};

litmus!(data_come_before_their_signal, 2, |fabric, _| {
    let pgas = &Pgas::new(fabric)?;
    let world = pgas.world();
    let (rounds, there) = (rounds(fabric), 1 - world.rank());
    // Longer than a frame now and then.
    let data = world.allocate::<u64>(3000)?;
    let signals = world.allocate::<u64>(2)?;
    for round in 1..=rounds {
        let count = if round % 16 == 0 { 3000 } else { round % 9 };
        let values = vec![round; count as usize];
        let (op, value) = match round % 2 {
            0 => (SignalOp::Set, round),
            _ => (SignalOp::Add, 1),
        };
        let signal = Signal {
            index: 0,
            op,
            value,
        };
        if round % 2 == u64::from(world.rank()) {
            data.put_signal(there, 0, &values, &signals, signal)?;
            // The answer: the data may be written again.
            signals.wait_until_from(1, Wanted::Equal(round), there)?;
        } else {
            signals.wait_until(0, Wanted::AtLeast(round.div_ceil(2)))?;
            let mut found = vec![0; count as usize];
            data.read_local(0, &mut found)?;
            same!(found, values);
            let answer = Signal {
                index: 1,
                op: SignalOp::Set,
                value: round,
            };
            signals.write_local(0, &[round.div_ceil(2)])?;
            signals.signal(there, answer)?;
        }
    }
    Ok(world.barrier()?)
});

litmus!(a_signal_follows_all_earlier_puts, 2, |fabric, _| {
    const LENGTH: u64 = 5;
    let pgas = &Pgas::new(fabric)?;
    let world = pgas.world();
    let rounds = rounds(fabric);
    let data = &world.allocate::<u64>(LENGTH * rounds)?;
    let signals = &world.allocate::<u64>(rounds)?;
    for round in 0..rounds {
        let (reader, first) = ((round % 2) as u32, LENGTH * round);
        if world.rank() == reader {
            signals.wait_until(round, Wanted::Equal(1))?;
            let mut found = [0; LENGTH as usize];
            data.read_local(first, &mut found)?;
            same!(found, [round + 1; LENGTH as usize]);
        } else {
            // To the member that the signal goes to, one by one.
            for index in first..first + LENGTH {
                match index % 2 {
                    0 => data.put_value(reader, index, round + 1)?,
                    _ => data.put_implicit(reader, index, &[round + 1])?,
                }
            }
            let signal = Signal {
                index: round,
                op: SignalOp::Add,
                value: 1,
            };
            signals.signal(reader, signal)?;
        }
    }
    Ok(world.barrier()?)
});

/// Memory of the units' own, which the kernel copies to, or messages where it must not: the signal,
/// which is a store to mapped memory, is not faster than they.
fn registered(fabric: &Fabric, _: &[samite_fabric::PeerId]) -> Outcome {
    let pgas = &Pgas::new(fabric)?;
    let world = pgas.world();
    let (rounds, there) = (rounds(fabric) / 4, 1 - world.rank());
    let data = world.register(vec![0_u64; 3000])?;
    let signals = world.allocate::<u64>(1)?;
    for round in 1..=rounds {
        let signal = Signal {
            index: 0,
            op: SignalOp::Set,
            value: round,
        };
        let values = [round; 3000];
        match round % 2 {
            0 => data.put_signal(there, 0, &values, &signals, signal)?,
            _ => {
                data.put_implicit(there, 0, &values)?;
                signals.signal(there, signal)?;
            }
        }
        signals.wait_until(0, Wanted::Equal(round))?;
        let mut found = [0; 3000];
        data.read_local(0, &mut found)?;
        check!(found == values, "{} of round {round}", found[2999]);
        world.barrier()?;
    }
    Ok(world.barrier()?)
}

#[test]
fn a_signal_waits_for_the_kernel() {
    units(2).run("litmus::signals::a_signal_waits_for_the_kernel", registered);
}

#[test]
fn a_signal_waits_for_messages() {
    let mask = Mask {
        kernel_copy: true,
        ..Mask::default()
    };
    units(2)
        .mask(mask)
        .run("litmus::signals::a_signal_waits_for_messages", registered);
}
