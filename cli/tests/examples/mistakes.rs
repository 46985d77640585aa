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
