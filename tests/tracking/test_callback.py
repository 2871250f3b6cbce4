from __future__ import annotations

from pathlib import Path

from ferrata.tracking.callback import RunCallback
from ferrata.tracking.runs import stage_run
from ferrata.tracking.store import connect


def test_a_real_trainer_logs_through_the_callback(
    project: Path, model_dir: Path, tmp_path: Path
) -> None:
    from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

    rows = [{"input_ids": [5, 6, 7], "labels": [5, 6, 7]}] * 4
    arguments = TrainingArguments(
        output_dir=str(tmp_path),
        max_steps=3,
        logging_steps=1,
        per_device_train_batch_size=2,
        report_to="none",
        save_strategy="no",
        use_cpu=True,
        disable_tqdm=True,
    )
    with stage_run("sft", {}, root=project) as run:
        trainer = Trainer(
            model=AutoModelForCausalLM.from_pretrained(model_dir, dtype="float32"),
            args=arguments,
            train_dataset=rows,
            callbacks=[RunCallback(run)],
        )
        trainer.train()
    assert run.run_id
    client = connect(project)[0]
    assert [m.step for m in client.get_metric_history(run.run_id, "loss")] == [1, 2, 3]
    assert {"learning_rate", "train_runtime"} <= set(client.get_run(run.run_id).data.metrics)
