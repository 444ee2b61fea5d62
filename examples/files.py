"""Data in many files: each rank reads its own tar shards, or its own Parquet files, and no others.

pip install webdataset pyarrow
python examples/files.py                             one process
dream run -n 2 examples/files.py                     two ranks: the same loss
dream run -n 3 examples/files.py --kind parquet      the same from Parquet, on any number of ranks
"""

import argparse
import io
import tarfile
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

import dream

FILES, ROWS = 16, 1000  # 16 files or more: as many parts as `input="sharded"` has


def rows():
    draw = np.random.default_rng(0)
    x = draw.standard_normal((ROWS, 8), dtype="float32")
    return x, (x[:, :2].sum(1) > 0).astype("int64")


def write_tar(folder):
    """Samples of two members each, as WebDataset has them: 00001.x.npy, 00001.y.cls."""
    x, y = rows()
    for at in range(FILES):
        with tarfile.open(folder / f"{at:02d}.tar", "w") as shard:
            for row in range(at, ROWS, FILES):
                array = io.BytesIO()
                np.save(array, x[row])
                label = str(y[row]).encode()
                for name, content in (("x.npy", array.getvalue()), ("y.cls", label)):
                    member = tarfile.TarInfo(f"{row:05d}.{name}")
                    member.size = len(content)
                    shard.addfile(member, io.BytesIO(content))


def read_tar(folder):
    import webdataset

    shards = sorted(map(str, folder.glob("*.tar")))
    # files are divided by worker, and not by rank: what is whose is left to dream
    found = webdataset.WebDataset(shards, shardshuffle=False, nodesplitter=lambda urls: urls)
    return found.decode().to_tuple("x.npy", "y.cls")


def write_parquet(folder):
    import pyarrow
    from pyarrow import parquet

    x, y = rows()
    for at in range(FILES):
        table = pyarrow.table({"x": list(x[at::FILES]), "y": y[at::FILES]})
        parquet.write_table(table, folder / f"{at:02d}.parquet")


class Parquet(IterableDataset):
    def __init__(self, folder):
        self.files = sorted(folder.glob("*.parquet"))

    def __iter__(self):
        from pyarrow import parquet

        info = get_worker_info()
        for file in self.files[info.id :: info.num_workers] if info else self.files:
            for batch in parquet.ParquetFile(file).iter_batches():
                for row in batch.to_pylist():
                    yield np.array(row["x"], "float32"), row["y"]


KINDS = {"tar": (write_tar, read_tar), "parquet": (write_parquet, Parquet)}


def train(folder, read):
    torch.manual_seed(0)
    with dream.strategy(input="sharded"):
        model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2))
        optimizer = torch.optim.AdamW(model.parameters(), 0.01)
        batches = DataLoader(read(folder), batch_size=50)
        for epoch in range(3):
            total, seen = 0.0, 0
            for x, y in batches:
                optimizer.zero_grad()
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                optimizer.step()
                total, seen = total + loss.item(), seen + 1
            print(f"epoch {epoch}: loss {total / seen:.4f} over {seen} batches")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--kind", choices=KINDS, default="tar")
    write, read = KINDS[parser.parse_args().kind]
    with tempfile.TemporaryDirectory() as name:
        write(Path(name))  # each rank makes a copy of its own; yours lie where all ranks see them
        train(Path(name), read)
