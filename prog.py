import os, sys, torch, reprise, torch._dynamo
if len(sys.argv)>1:
    os.makedirs("/tmp/w/i16/gone",exist_ok=True); os.chdir("/tmp/w/i16/gone"); os.rmdir("/tmp/w/i16/gone"); sys.argv=["train.py"]
model = torch.nn.Linear(3, 3)
reprise.auto(model, budget="0.5x")
for _ in range(3):
    model(torch.ones(2, 3)).sum().backward()
print("trained", reprise.__file__)
