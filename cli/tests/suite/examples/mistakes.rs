//! The mistakes that the tutorial asks its reader to make, each as a program.

/// The ring with a receive that no message matches.
pub(crate) mod wrong_tag {
    use samite::Match;

    const TAG: u64 = 7;

    pub(crate) fn main() -> samite::Result<()> {
        let fabric = samite::init()?;
        let units = fabric.job()?;
        let (me, size) = (fabric.identity().unit as usize, units.len());
        let (next, before) = (units[(me + 1) % size], units[(me + size - 1) % size]);
        fabric.send(next, TAG, &[0; 8])?;
        fabric.recv(Match::from(before, TAG + 1), &mut [0; 8])?;
        Ok(())
    }
}

/// The solver, which does not close its stream.
pub(crate) mod no_close {
    use samite::ndarray::Array2;
    use samite::stage::Stage;
    use std::error::Error;

    pub(crate) fn main() -> Result<(), Box<dyn Error>> {
        let fabric = samite::init()?;
        let rank = u64::from(fabric.identity().rank);
        let stage = Stage::join(&fabric)?;
        let mut stream = stage.writer("heat")?;
        for _ in 0..5 {
            let mut step = stream.step()?;
            let rows = Array2::from_elem((30, 160), 1.0);
            step.put("temperature", [120, 160], [30 * rank, 0], rows.view())?;
            step.commit()?;
        }
        Ok(())
    }
}

/// The distributed plate, whose ghost cells stay as they are.
pub(crate) mod no_exchange {
    use samite::pgas::Pgas;
    use samite::pgas::array::{Array, Halo, Pattern};
    use std::error::Error;

    const ROWS: u64 = 120;
    const COLS: u64 = 160;
    const SWEEPS: u64 = 400;

    pub(crate) fn main() -> Result<(), Box<dyn Error>> {
        let fabric = samite::init()?;
        let pgas = Pgas::new(&fabric)?; // this unit among the units of its job
        let world = pgas.world();

        // Each unit has a block of the plate, with a ring of ghost cells around it.
        let pattern = Pattern::block([ROWS, COLS], world.size())?.with_halo(Halo::new([1, 1]))?;
        let mut plate = Array::<f64, 2>::new(world, pattern)?.into_local()?;
        plate.fill_with(|[y, x]| initial(y, x))?;
        let width = plate.stored_extents()[1] as usize;

        for _ in 0..SWEEPS {
            sweep(plate.as_mut_slice(), width);
        }

        let total = plate.reduce(|a, b| a + b)?.unwrap_or(0.0);
        let (hottest, place) = plate.max_element()?.ok_or("the plate has no cells")?;
        if world.rank() == 0 {
            let [down, across] = pattern.grid().shape();
            println!("{down} x {across} units");
            println!("after {SWEEPS} sweeps: total {total:.3}, hottest {hottest:.3} at {place:?}");
        }
        Ok(())
    }

    /// Returns the temperature of a cell at the beginning: a hot disc and a warm square.
    fn initial(y: u64, x: u64) -> f64 {
        let from_centre = (y as f64 - 50.0).hypot(x as f64 - 60.0);
        if from_centre < 25.0 {
            100.0
        } else if (70..100).contains(&y) && (100..130).contains(&x) {
            60.0
        } else {
            0.0
        }
    }

    /// Lets heat flow between neighbours once. `cells` are rows of `width`, with the ring around
    /// them.
    fn sweep(cells: &mut [f64], width: usize) {
        let old = cells.to_vec();
        for row in (width..old.len() - width).step_by(width) {
            for at in row + 1..row + width - 1 {
                let around = old[at - width] + old[at - 1] + old[at + 1] + old[at + width];
                cells[at] += 0.2 * (around - 4.0 * old[at]);
            }
        }
    }
}
