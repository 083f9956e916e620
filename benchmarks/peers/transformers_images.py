"""transformers' own model and image processor, in its process."""

from __future__ import annotations

import torch
import transformers
from benchmarks.image_task import QUESTION, ImageTask, drive
from PIL import Image
from transformers import AutoConfig, AutoImageProcessor, AutoModelForImageTextToText, AutoTokenizer


class Transformers:
    def __init__(self, task: ImageTask) -> None:
        torch.set_num_threads(task.threads)
        config = AutoConfig.from_pretrained(task.model)
        self._model = AutoModelForImageTextToText.from_config(config, dtype=getattr(torch, task.dtype)).eval()
        self._tokenizer = AutoTokenizer.from_pretrained(task.model)
        self._images = AutoImageProcessor.from_pretrained(task.model)
        self.version = f"{transformers.__version__}, torch {torch.__version__}"

    @torch.inference_mode()
    def answer(self, image: str) -> None:
        with Image.open(image) as file:
            inputs = self._images(images=[file.convert("RGB")], return_tensors="pt")
        tokens = int(inputs["image_grid_thw"].prod()) // self._images.merge_size**2
        shown = f"<|vision_start|>{'<|image_pad|>' * tokens}<|vision_end|>{QUESTION}"
        ids = self._tokenizer(f"<|im_start|>user\n{shown}<|im_end|>\n<|im_start|>assistant\n", return_tensors="pt")
        kinds = (ids["input_ids"] == self._model.config.image_token_id).int()
        self._model.generate(
            **ids,
            pixel_values=inputs["pixel_values"].to(self._model.dtype),
            image_grid_thw=inputs["image_grid_thw"],
            mm_token_type_ids=kinds,
            max_new_tokens=1,
            do_sample=False,
        )


if __name__ == "__main__":
    drive(Transformers)
