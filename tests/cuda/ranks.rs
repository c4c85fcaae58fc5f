//! Ranks on a device: what they would add up compiles, and several that share one GPU come to the weights of one.

use gradus::backend::{Backend, Cuda, TreeSum};
use gradus::models::ModelConfig;
use gradus::testing::SharedDevice;
use gradus::train::language::LanguageModel;
use gradus::train::ranks::{Ranks, Transport, in_process};
use gradus::{Batch, Clip, Precision, Settings, Trainer, Unwatched};
use gradus_cuda::{can_compile, compile};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;

const SEQUENCE: usize = 32;
const VOCABULARY: usize = 61;

#[test]
#[ignore = "takes NVIDIA's compiler: run by bench/cuda"]
fn sums_of_blocks_compile() {
    can_compile().unwrap();
    for (blocks, additions) in [(1, vec![]), (2, vec![(0, 1)]), (4, vec![(0, 1), (2, 3), (0, 2)])] {
        let sum = TreeSum { blocks: vec![0; blocks], additions: additions.into(), target: 0, numbers: 1024 };
        let launch = sum.launch();
        compile(launch.entry, &launch.source).unwrap();
    }
}

fn tokens(step: u64, batch: &mut Batch) -> gradus::train::Result<()> {
    let token = |place: usize| ((place * place / 7 + place * 3 + step as usize * 11) % VOCABULARY) as i32;
    batch.numbers_mut::<i32>("tokens")?.iter_mut().enumerate().for_each(|(place, number)| *number = token(place));
    batch.numbers_mut::<i32>("targets")?.iter_mut().enumerate().for_each(|(place, number)| *number = token(place + 1));
    Ok(())
}

/// The weights that so many ranks come to, which must be the same for all.
fn trained(ranks: usize, settings: &Settings, device: &SharedDevice) -> Vec<Vec<u8>> {
    let train = |end: Box<dyn Transport>| {
        let model = ModelConfig { dropout: 0.1, ..ModelConfig::gpt2(VOCABULARY, 64, 2, 2, SEQUENCE) };
        let (model, backend): (_, Arc<dyn Backend>) = (LanguageModel::new(Rc::new(model)), Arc::new(device.clone()));
        let mut trainer = Trainer::on_ranks(model, settings.clone(), backend, Ranks::new(end)).unwrap();
        trainer.train(tokens, &mut Unwatched).unwrap();
        let states = trainer.program().states().filter(|(_, role, _)| *role == gradus::Role::Weight);
        states.map(|(name, _, _)| trainer.program().bytes(name).unwrap().to_vec()).collect::<Vec<_>>()
    };
    let all: Vec<Vec<Vec<u8>>> = thread::scope(|scope| {
        let train = &train;
        let ends = in_process(ranks).into_iter().map(|end| Box::new(end) as Box<dyn Transport>);
        let threads: Vec<_> = ends.map(|end| scope.spawn(move || train(end))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(all.iter().all(|weights| *weights == all[0]));
    all.into_iter().next().unwrap()
}

/// What ranks send each other is sent by NCCL, from the one GPU to itself.
#[test]
#[ignore = "takes a CUDA device and NCCL: run by bench/cuda"]
fn ranks_that_share_a_device_come_to_the_weights_of_one() {
    let plain =
        Settings { batch: 16, lanes: 8, micro_batch: 1, steps: Some(6), clip: Clip::Norm(0.5), ..Settings::default() };
    for precision in [Precision::F32, Precision::Bf16] {
        let settings = Settings { precision, ..plain.clone() };
        let expected = trained(1, &settings, &SharedDevice::new(Arc::new(Cuda::new(0).unwrap())));
        for ranks in [2, 3, 4, 8] {
            let device = SharedDevice::new(Arc::new(Cuda::new(0).unwrap()));
            assert!(trained(ranks, &settings, &device) == expected, "{ranks} ranks in {precision:?}");
            println!(
                "{ranks} ranks in {precision:?}: the same weights, {} numbers sent",
                device.traffic().sent.load(Relaxed)
            );
        }
    }
}
