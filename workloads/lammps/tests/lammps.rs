//! The real library: what it computes is what we compute, and what it refuses becomes an error.

use samite_lammps::{Displacement, Error, Lammps, Melt, Origin};
use samite_testkit::require;
use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A process has one simulation at a time, and these tests are threads of one.
static ONE: Mutex<()> = Mutex::new(());

/// A simulation, unless LAMMPS is missing.
fn lammps(test: &str) -> Option<(MutexGuard<'static, ()>, Lammps)> {
    let one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    match Lammps::open(&[]) {
        Ok(lammps) => Some((one, lammps)),
        Err(error @ Error::Missing { .. }) => {
            require(test, false, &error.to_string());
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// Hot enough for many atoms to leave the box on one side and come in on the other.
fn hot_melt(lammps: &mut Lammps) {
    let melt = Melt::new([5, 4, 6]).at_temperature(3.0);
    lammps.commands(melt.commands()).unwrap();
    assert_eq!(lammps.atoms(), melt.atoms());
}

#[test]
fn displacements_are_those_of_compute_msd() {
    let Some((_one, mut lammps)) = lammps("displacements_are_those_of_compute_msd") else {
        return;
    };
    hot_melt(&mut lammps);
    // LAMMPS sorts its atoms every 1000 steps, unless told.
    lammps
        .commands(["compute moved all msd", "atom_modify sort 40 1.0"])
        .unwrap();
    let (mut origin, mut steps, mut orders) = (None, Vec::new(), BTreeSet::new());
    let mut rounds = 0;
    lammps
        .each_step(20, 400, |atoms| {
            let start =
                origin.get_or_insert_with(|| Origin::new(atoms.ids, atoms.unwrapped()).unwrap());
            // In two parts, as two readers would.
            let half = atoms.ids.len() / 3;
            let part = |from: usize, to: usize| {
                let positions: Vec<_> = atoms.unwrapped().skip(from).take(to - from).collect();
                start
                    .displacement(&atoms.ids[from..to], positions.into_iter())
                    .unwrap()
            };
            let ours: Displacement = part(0, half).merge(part(half, atoms.ids.len()));
            assert_eq!(ours.atoms as usize, start.atoms());
            let (ours, theirs) = (ours.mean(), atoms.compute("moved").unwrap());
            let [x, y, z] = ours.along;
            for (ours, theirs) in [x, y, z, ours.total].into_iter().zip(theirs) {
                assert!(
                    (ours - theirs).abs() <= 1e-10 * theirs,
                    "step {}: {ours} {theirs}",
                    atoms.step
                );
            }
            rounds += atoms
                .images
                .iter()
                .filter(|&&image| image != atoms.images[0])
                .count();
            steps.push((atoms.step, ours.total));
            orders.insert(atoms.ids.to_vec());
            ControlFlow::Continue(())
        })
        .unwrap();
    let numbers: Vec<u64> = steps.iter().map(|step| step.0).collect();
    assert_eq!(numbers, (0..=400).step_by(20).collect::<Vec<_>>());
    assert_eq!(steps[0].1, 0.0);
    assert!(steps[20].1 > 0.1, "it does not melt: {}", steps[20].1);
    // Else this test would not see wrong matching and wrong unwrapping.
    assert!(orders.len() > 1, "LAMMPS never reordered its atoms");
    assert!(rounds > 0, "no atom went round the box");
}

/// However this process ends, nothing of LAMMPS' MPI is left in the node's memory.
#[test]
fn a_simulation_has_no_names_in_shared_memory() {
    let test = "a_simulation_has_no_names_in_shared_memory";
    let Some((_one, mut lammps)) = lammps(test) else {
        return;
    };
    hot_melt(&mut lammps);
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let named: Vec<&str> = maps
        .lines()
        .filter(|line| line.contains("/dev/shm/") && !line.ends_with("(deleted)"))
        .collect();
    assert!(named.is_empty(), "{named:?}");
    lammps.command("run 10").unwrap();
}

#[test]
fn watching_changes_nothing() {
    let Some((_one, mut watched)) = lammps("watching_changes_nothing") else {
        return;
    };
    hot_melt(&mut watched);
    watched.command("compute moved all msd").unwrap();
    watched
        .each_step(1, 100, |_| ControlFlow::Continue(()))
        .unwrap();
    let with = watched.compute("moved").unwrap();
    drop(watched);
    let mut alone = Lammps::open(&[]).unwrap();
    hot_melt(&mut alone);
    alone
        .commands(["compute moved all msd", "run 100"])
        .unwrap();
    assert_eq!(alone.compute("moved").unwrap(), with);
}

#[test]
fn a_run_ends_when_the_watcher_has_seen_enough() {
    let Some((_one, mut lammps)) = lammps("a_run_ends_when_the_watcher_has_seen_enough") else {
        return;
    };
    hot_melt(&mut lammps);
    let mut steps = Vec::new();
    let mut see_until = |last: u64, lammps: &mut Lammps| {
        lammps
            .each_step(5, 1000, |atoms| {
                steps.push(atoms.step);
                if atoms.step >= last {
                    ControlFlow::Break(())
                } else {
                    ControlFlow::Continue(())
                }
            })
            .unwrap();
    };
    see_until(15, &mut lammps);
    // Where the first one stopped, the second one begins; how far LAMMPS comes before it looks is
    // its business.
    see_until(200, &mut lammps);
    assert_eq!(steps[..4], [0, 5, 10, 15]);
    assert_eq!(
        steps.iter().rposition(|&step| step < 200),
        Some(steps.len() - 2),
        "{steps:?}"
    );
}

#[test]
fn a_panic_of_the_watcher_comes_out_and_the_simulation_lives_on() {
    let Some((_one, mut lammps)) = lammps("a_panic_of_the_watcher_comes_out") else {
        return;
    };
    hot_melt(&mut lammps);
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        lammps.each_step(1, 10, |atoms| {
            assert!(atoms.step < 3, "seen enough");
            ControlFlow::Continue(())
        })
    }));
    let said = caught.unwrap_err();
    assert_eq!(said.downcast_ref::<&str>(), Some(&"seen enough"));
    let mut seen = 0;
    lammps
        .each_step(1, 2, |_| {
            seen += 1;
            ControlFlow::Continue(())
        })
        .unwrap();
    assert_eq!(seen, 3);
}

#[test]
fn refusals_say_what_lammps_says() {
    let Some((_one, mut lammps)) = lammps("refusals_say_what_lammps_says") else {
        return;
    };
    let error = lammps.command("melt everything").unwrap_err();
    let Error::Refused { command, message } = &error else {
        panic!("{error}");
    };
    assert_eq!(command, "melt everything");
    assert!(message.contains("Unknown command"), "{message}");
    assert!(matches!(lammps.compute("nothing"), Err(Error::Unknown(_))));
    assert_eq!(lammps.command("run\0"), Err(Error::Nul("run\0".to_owned())));
    assert_eq!(Lammps::open(&[]).unwrap_err(), Error::InUse);
    // What was refused leaves no trace.
    hot_melt(&mut lammps);
    assert!(lammps.version() > 20_200_000, "{}", lammps.version());
    drop(lammps);
    let error = Lammps::open(&["-nonsense"]).unwrap_err();
    assert!(matches!(&error, Error::Refused { .. }), "{error}");
}

#[test]
fn a_tilted_box_is_refused() {
    let Some((_one, mut lammps)) = lammps("a_tilted_box_is_refused") else {
        return;
    };
    let tilted = Melt::new([5, 5, 5]).commands().into_iter().map(|command| {
        command.replace(
            "region box block 0 5 0 5 0 5",
            "region box prism 0 5 0 5 0 5 1 0 0",
        )
    });
    lammps.commands(tilted).unwrap();
    let error = lammps
        .each_step(1, 5, |_| ControlFlow::Continue(()))
        .unwrap_err();
    assert_eq!(error, Error::Tilted);
}
